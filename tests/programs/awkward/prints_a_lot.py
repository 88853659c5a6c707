"""Prints 8 MiB to both streams at every call."""

import sys


def total(numbers):
    for stream in (sys.stdout, sys.stderr):
        for _ in range(8):
            print("x" * (1 << 20), file=stream)
    return sum(numbers)
