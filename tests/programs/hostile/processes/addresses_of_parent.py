"""Reads where what is in its parent's memory, past the randomness of addresses."""

import os

read = 0
for name in ("maps", "smaps", "auxv", "pagemap", "stack", "syscall"):
    try:
        read += len(open(f"/proc/{os.getppid()}/{name}", "rb").read(8)) > 0
    except OSError:
        continue
print("done" if read else "refused")
