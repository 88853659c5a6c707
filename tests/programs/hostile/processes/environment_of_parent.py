"""Reads its parent's environment."""

import os

try:
    open(f"/proc/{os.getppid()}/environ", "rb").read()
    print("done")
except OSError:
    print("refused")
