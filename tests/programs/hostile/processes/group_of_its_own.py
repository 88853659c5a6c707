"""Puts a child into a process group of its own, so that whoever kills the group misses it."""

import os
import time

child = os.fork()
if child == 0:
    time.sleep(0.1)
    os._exit(0)
try:
    os.setpgid(child, child)
    # Whatever is left of a process namespace ends with its process 1.
    print("done" if os.getppid() != 1 else "refused")
except OSError:
    print("refused")
os.waitpid(child, 0)
