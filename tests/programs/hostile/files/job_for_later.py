"""Makes a file where the machine looks for jobs to run later, or at the next login."""

import os

made = 0
for folder in ("/etc/cron.d", "/var/spool/cron", "/etc/profile.d", "/etc/systemd/system"):
    path = f"{folder}/hostile-{os.getpid()}"
    try:
        open(path, "x").close()
        os.remove(path)
        made += 1
    except OSError:
        continue
print("done" if made else "refused")
