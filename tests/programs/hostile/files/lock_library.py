"""Locks a file of the machine, so that others who lock it have to wait."""

import fcntl
import os

try:
    with open(os.__file__, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("done")
except OSError:
    print("refused")
