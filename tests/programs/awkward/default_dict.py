"""Returns a defaultdict of numpy's integers."""

from collections import defaultdict

import numpy as np


def words(text):
    counts = defaultdict(lambda: np.int64(0))
    for word in text.split():
        counts[word] += 1
    return counts
