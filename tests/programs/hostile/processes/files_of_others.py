"""Finds which files other processes have open, and opens them too."""

import glob
import os

opened = 0
for path in glob.glob("/proc/[0-9]*/fd/*"):
    try:
        if int(path.split("/")[2]) != os.getpid() and os.path.isfile(os.readlink(path)):
            os.close(os.open(path, os.O_RDONLY))
            opened += 1
    except OSError:
        continue
print("done" if opened else "refused")
