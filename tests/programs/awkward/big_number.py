"""Goes through numbers of 100,000 digits."""


def total(numbers):
    return sum(number + 10**100_000 for number in numbers) - len(numbers) * 10**100_000
