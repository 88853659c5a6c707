"""Empties its argument."""


def total(numbers):
    result = 0
    while numbers:
        result += numbers.pop()
    return result
