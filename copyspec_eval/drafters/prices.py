"""How sure a drafter must be of a token for the token to be worth the time that it costs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

_RATE = 1.5
"""Tokens that are had, with drafts, in the time of a one-token step: what a longer step forgoes."""
_TRUST = 1.4
"""A chance q that is told from a few occurrences comes true about as often as q to this power."""
_LEAST = 0.005
"""Where tokens cost nothing, drafting still does."""


def prices(costs: Mapping[int, float]) -> tuple[float, ...]:
    """Of each draft token, the least chance of being accepted at which to draft it.

    One more token adds its chance of being accepted to what a step gives, and the slope of `costs`
    to what it takes. Between the numbers of tokens that were measured the costs are taken to be
    linear, and a number whose costs lie above the line between its neighbours is passed over, so
    that prices never fall.

    Args:
        costs: time of a step by its number of draft tokens, in any unit; 0 and the most that is
            ever drafted are among the numbers.

    Returns:
        as many prices as tokens are drafted at most.

    >>> [round(price, 3) for price in prices({0: 50.0, 2: 51.0, 3: 55.0})]
    [0.05, 0.05, 0.22]
    """
    hull: list[tuple[int, float]] = []
    for point in sorted(costs.items()):
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-2], point):
            hull.pop()
        hull.append(point)
    of_tokens: list[float] = []
    for start, end in itertools.pairwise(hull):
        worth = _RATE * max(0.0, _slope(start, end)) / costs[0]
        of_tokens += [max(_LEAST, min(1.0, worth ** (1 / _TRUST)))] * (end[0] - start[0])
    return tuple(of_tokens)


def _slope(start: tuple[int, float], end: tuple[int, float]) -> float:
    return (end[1] - start[1]) / (end[0] - start[0])
