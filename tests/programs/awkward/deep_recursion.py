"""Recurses 20,000 deep."""

import sys

sys.setrecursionlimit(10**6)


def depth(number):
    return 0 if number == 0 else depth(number - 1)


def total(numbers):
    return sum(numbers) + depth(20_000)
