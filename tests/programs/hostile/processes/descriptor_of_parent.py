"""Gets a descriptor that stands for its parent, by which that can be signalled and waited for."""

import os

try:
    os.close(os.pidfd_open(os.getppid()))
    print("done")
except OSError:
    print("refused")
