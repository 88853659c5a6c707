"""Returns a decimal number."""

from decimal import Decimal, getcontext

getcontext().prec = 60


def half(number):
    return Decimal(number) / 2
