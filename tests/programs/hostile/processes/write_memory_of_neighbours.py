"""Opens the memory of programs that run beside it to write to it, and so change their results."""

import os

opened = 0
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in (os.getpid(), os.getppid()):
        try:
            open(f"/proc/{name}/maps").read(9)
            os.close(os.open(f"/proc/{name}/mem", os.O_RDWR))
            opened += os.path.exists(f"/proc/{name}/exe")
        except OSError:
            continue
print("done" if opened else "refused")
