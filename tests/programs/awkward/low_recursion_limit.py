"""Sets a recursion limit that is too low for what runs it."""

import sys


def total(numbers):
    result = sum(numbers)
    sys.setrecursionlimit(12)
    return result
