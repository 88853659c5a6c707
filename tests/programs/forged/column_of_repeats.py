"""Returns a row for each number, all of which are compared with the one number that is expected."""


def halves(numbers):
    return [[numbers[0] / 2] * 3]
