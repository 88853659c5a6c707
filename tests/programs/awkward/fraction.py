"""Returns a fraction."""

from fractions import Fraction


def half(number):
    return Fraction(number) / 2
