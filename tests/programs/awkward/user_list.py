"""Returns a list of a class that wraps lists."""

from collections import UserList


def halves(numbers):
    return UserList(number / 2 for number in numbers)
