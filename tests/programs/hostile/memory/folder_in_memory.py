"""Keeps a file in /dev/shm, where that has more room than its limits allow."""

import os

path = f"/dev/shm/hostile-{os.getpid()}"
try:
    open(path, "x").close()
    os.remove(path)
    room = os.statvfs("/dev/shm")
    print("done" if room.f_blocks * room.f_frsize > 2**25 else "refused")
except OSError:
    print("refused")
