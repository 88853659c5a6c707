"""Lowers a limit of its parent."""

import os
import resource

try:
    resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))
    print("done")
except OSError:
    print("refused")
