"""Reads what the pages of the machine's memory are used for."""

import os

read = 0
for name in ("kpageflags", "kpagecount", "kpagecgroup"):
    try:
        descriptor = os.open(f"/proc/{name}", os.O_RDONLY)
        os.lseek(descriptor, 8 * 4096, os.SEEK_SET)
        read += len(os.read(descriptor, 8)) > 0
    except OSError:
        continue
print("done" if read else "refused")
