"""Leaves a file in the machine's /tmp, where others may trust it."""

import os

space = os.statvfs("/tmp")
private = space.f_blocks * space.f_frsize <= 2**26  # a /tmp of its own, as large as it may fill
path = f"/tmp/hostile-{os.getpid()}"
try:
    open(path, "x").close()
    os.remove(path)
    print("refused" if private else "done")
except OSError:
    print("refused")
