"""Opens its parent's memory as a file."""

import os

try:
    open(f"/proc/{os.getppid()}/mem", "r+b")
    print("done")
except OSError:
    print("refused")
