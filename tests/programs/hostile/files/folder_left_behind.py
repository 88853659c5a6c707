"""Moves its folder to another place in the machine's /tmp, where its removal misses it."""

import os

space = os.statvfs("/tmp")
private = space.f_blocks * space.f_frsize <= 2**26  # a /tmp of its own, as large as it may fill
folder = os.getcwd()
try:
    os.rename(folder, f"/tmp/hostile-{os.getpid()}")
    os.rename(f"/tmp/hostile-{os.getpid()}", folder)
    print("refused" if private else "done")
except OSError:
    print("refused")
