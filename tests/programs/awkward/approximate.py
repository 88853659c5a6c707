"""Finds a zero by halving an interval, to ten digits."""


def find_zero(coefficients):
    def value(x):
        return sum(factor * x**power for power, factor in enumerate(coefficients))

    low, high = -1000.0, 1000.0
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (low, middle) if value(low) * value(middle) <= 0 else (middle, high)
    return low
