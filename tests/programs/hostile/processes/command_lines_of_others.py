"""Lists what else runs on the machine, with all arguments."""

import os

own = {os.getpid(), os.getppid()}
read = 0
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in own:
        try:
            read += len(open(f"/proc/{name}/cmdline", "rb").read()) > 0
        except OSError:
            continue
print("done" if read else "refused")
