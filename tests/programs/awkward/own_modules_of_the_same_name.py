"""Has names that the process that runs it uses, too."""

import sys

json = encode = decode = solution = values = None
sys.modules["json"] = sys.modules["solution"] = None


def main():
    raise RuntimeError


def total(numbers):
    return sum(numbers)
