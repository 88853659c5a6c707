"""Is an object that can be called, with a cache and a count of calls."""

from functools import lru_cache


@lru_cache
def cached(numbers):
    return sum(numbers)


class Total:
    calls = 0

    def __call__(self, numbers):
        self.calls += 1
        return cached(tuple(numbers))


total = Total()
