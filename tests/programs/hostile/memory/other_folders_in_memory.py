"""Makes a file in other folders of the machine that are kept in memory."""

import os

folders = ("/run", "/run/lock", f"/run/user/{os.getuid()}", "/dev/hugepages", "/dev/mqueue", "/dev")
made = 0
for folder in folders:
    path = f"{folder}/hostile-{os.getpid()}"
    try:
        open(path, "x").close()
        os.remove(path)
        made += 1
    except OSError:
        continue
print("done" if made else "refused")
