"""Has a script's ending, which reads input and exits."""

import sys


def total(numbers):
    return sum(numbers)


if __name__ == "__main__":
    print(total([int(word) for word in input().split()]))
    sys.exit(1)
