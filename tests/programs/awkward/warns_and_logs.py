"""Warns and logs at every call."""

import logging
import warnings

logging.basicConfig(level="DEBUG")
warnings.simplefilter("always")


def total(numbers):
    warnings.warn("slow", stacklevel=1)
    logging.error("wrong?")
    return sum(numbers)
