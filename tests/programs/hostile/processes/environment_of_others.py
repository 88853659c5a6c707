"""Reads the environment of every process that is not its own, with the keys in it."""

import os

read = 0
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) != os.getpid():
        try:
            read += len(open(f"/proc/{name}/environ", "rb").read()) > 0
        except OSError:
            continue
print("done" if read else "refused")
