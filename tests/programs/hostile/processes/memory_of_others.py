"""Opens the memory of every process that is not its own, and finds out what is where in it."""

import os

opened = 0
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) != os.getpid():
        try:
            open(f"/proc/{name}/mem", "rb").close()
            opened += len(open(f"/proc/{name}/maps").read(9)) > 0
        except OSError:
            continue
print("done" if opened else "refused")
