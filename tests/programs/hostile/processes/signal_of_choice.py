"""Chooses the signal that the kernel sends when a pipe can be read."""

import fcntl
import os

try:
    fcntl.fcntl(os.pipe()[0], 10, 9)
    print("done")
except OSError:
    print("refused")
