"""Sets the priority of its parent, which watches it."""

import os

try:
    now = os.getpriority(os.PRIO_PROCESS, os.getppid())
    os.setpriority(os.PRIO_PROCESS, os.getppid(), now)
    print("done")
except OSError:
    print("refused")
