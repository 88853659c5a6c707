"""Chooses how its parent, which watches it, is scheduled."""

import os

try:
    now = os.sched_getscheduler(os.getppid())
    os.sched_setscheduler(os.getppid(), now, os.sched_getparam(os.getppid()))
    print("done")
except OSError:
    print("refused")
