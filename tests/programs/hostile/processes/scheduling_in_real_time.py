"""Has itself scheduled before all other processes of the machine."""

import os

try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    print("done")
except OSError:
    print("refused")
