"""Sends a signal to the group of processes that its parent is in."""

import os

try:
    group = os.getpgid(os.getppid())
    if group not in (0, os.getpgid(0)):
        os.killpg(group, 0)
    print("done" if group else "refused")
except OSError:
    print("refused")
