"""Raises what an interrupted evaluation raises."""


def total(numbers):
    raise KeyboardInterrupt
