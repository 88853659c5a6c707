"""Reads how many bytes its parent has read and written, which tells when it is watched."""

import os

try:
    open(f"/proc/{os.getppid()}/io").read()
    print("done")
except OSError:
    print("refused")
