"""Joins all groups of users that have special rights, such as those for disks."""

import os

try:
    os.setgroups([4, 6, 15, 27, 42])
    print("done")
except OSError:
    print("refused")
