"""Chooses the processors on which its parent, which watches it, may run."""

import os

try:
    os.sched_setaffinity(os.getppid(), os.sched_getaffinity(os.getppid()))
    print("done")
except OSError:
    print("refused")
