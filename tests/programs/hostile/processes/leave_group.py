"""Leaves its process group and session, so that whoever kills the group misses it."""

import os

child = os.fork()
if child == 0:
    try:
        os.setsid()
        os._exit(0)
    except OSError:
        os._exit(1)
left = os.waitpid(child, 0)[1] == 0
# Whatever is left of a process namespace ends with its process 1.
print("done" if left and os.getppid() != 1 else "refused")
