"""Returns numpy's float, exactly right."""

import numpy as np


def half(number):
    return np.float64(number) / 2
