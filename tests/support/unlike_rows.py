"""Rows of unlike contexts, and what is fed to each of them in one forward."""

from typing import Any

from tiny_models import VOCABULARY

from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.forward import Part, forward

CONTEXTS = (20, 33, 7, 50)
EXTENT = 96
TREE = [-1, 0, 0, 1, 2, 2]


def tokens(row: int, start: int, count: int) -> list[int]:
    places = range(start, start + count)
    return [(7 * row + 5 * place + place**2) % VOCABULARY for place in places]


def filled(model: Any) -> RowCache:
    cache = RowCache(len(CONTEXTS), EXTENT)
    for row, length in enumerate(CONTEXTS):
        forward(model, cache, [Part(row, 0, tokens(row, 0, length))], length, logits_to_keep=1)
    return cache


LENGTHS = (1, len(TREE), 9, 2)


def parts() -> list[Part]:
    """Row 1 has a tree."""
    return [
        Part(row, start, tokens(row, start, length), TREE if row == 1 else None)
        for row, (start, length) in enumerate(zip(CONTEXTS, LENGTHS, strict=True))
    ]
