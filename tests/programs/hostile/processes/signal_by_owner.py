"""Has the kernel send its parent a signal when a pipe can be read."""

import fcntl
import os

reader, writer = os.pipe()
try:
    fcntl.fcntl(reader, fcntl.F_SETOWN, os.getppid())
    print("done")
except OSError:
    print("refused")
