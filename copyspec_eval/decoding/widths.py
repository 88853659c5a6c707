"""How wide a step is: which widths there are, and which of them holds what has to be fed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_KEYS = 64


def ladder(widest: int) -> tuple[int, ...]:
    """Widths up to `widest` or a little more: few, and so dense that padding costs little.

    >>> ladder(11)
    (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12)
    >>> ladder(64)[10:]
    (14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
    """
    widths = [1]
    while widths[-1] < widest:
        widths.append(widths[-1] + max(1, 1 << widths[-1].bit_length() >> 3))
    return tuple(sorted({*widths, widest}))


def padded(widths: Sequence[int], width: int) -> int:
    """The narrowest of `widths`, ascending, that is at least `width`."""
    return next(wide for wide in widths if wide >= width)


def key_extent(length: int) -> int:
    """The fewest keys that are attended to where `length` are needed, masked ones included.

    >>> key_extent(1), key_extent(128)
    (64, 128)
    """
    return -(-length // _KEYS) * _KEYS


def most_padding(widths: Sequence[int]) -> int:
    """The most tokens by which `padded` lengthens a step.

    >>> most_padding((2, 3, 4, 8))
    3
    """
    return max(wider - narrower for narrower, wider in pairwise((0, *widths))) - 1


def filling(total: int, widths: Sequence[int], num_rows: int) -> list[int]:
    """Tokens of each row that come near a total, as many of the rows as there are tokens for.

    >>> filling(100, (1, 2, 4, 8, 16, 32), num_rows=6), filling(3, (1, 2), num_rows=6)
    ([32, 32, 32, 2, 1, 1], [1, 1, 1])
    """
    lengths: list[int] = []
    left = total - min(total, num_rows)
    for _ in range(min(total, num_rows)):
        lengths.append(max(width for width in (1, *widths) if width - 1 <= left))
        left -= lengths[-1] - 1
    return lengths
