"""Closes its output, and then all three streams."""

import os
import sys

sys.stdout.close()
sys.stderr = sys.stdin = None
for descriptor in (0, 1, 2):
    os.close(descriptor)


def total(numbers):
    return sum(numbers)
