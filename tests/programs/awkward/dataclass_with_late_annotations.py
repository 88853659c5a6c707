"""Has a dataclass whose annotations are strings."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(order=True)
class Sum:
    of: list[int]
    start: ClassVar[int] = 0

    def result(self) -> int:
        return sum(self.of, self.start)


def total(numbers):
    return Sum(numbers).result()
