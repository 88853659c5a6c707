"""Sends a signal to all processes there are with a single call."""

import os

try:
    os.kill(-1, 0)
    print("done")
except OSError:
    print("refused")
