"""Locks a part of a file of the machine for reading, so that others wait who lock it to write."""

import fcntl
import os

try:
    with open(os.__file__, "rb") as file:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1)
    print("done")
except OSError:
    print("refused")
