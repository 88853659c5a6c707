"""Needs three seconds before its function is there."""

import time

time.sleep(3)


def total(numbers):
    return sum(numbers)
