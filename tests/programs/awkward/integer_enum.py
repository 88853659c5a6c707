"""Returns members of an enumeration, which are integers."""

from enum import IntEnum


def total(numbers):
    return IntEnum("Sum", {"RESULT": sum(numbers)}).RESULT
