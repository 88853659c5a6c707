"""Sums with numpy and returns numpy's integer."""

import numpy as np


def total(numbers):
    return np.sum(np.array(numbers, dtype=np.int64))
