"""From which probability of being accepted on a draft token saves more time than it costs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

_TOKENS_PER_STEP = 1.5
"""Tokens per one-token step's time that drafting gives on average: what a longer step forgoes."""
_CALIBRATION = 1.4
"""A probability q estimated from few occurrences comes true about as often as q to this power."""
_LEAST = 0.005
"""Where tokens cost nothing, drafting them still does."""


def acceptance_thresholds(costs: Mapping[int, float]) -> tuple[float, ...]:
    """Of each draft token, the least probability of being accepted at which to draft it.

    One more token adds its probability of being accepted to what a step gives, and the slope of
    `costs` to what it takes. Between the measured numbers of tokens the costs are taken to be
    linear, and a number whose cost lies above the line between its neighbours is left out, so that
    thresholds never fall.

    Args:
        costs: time of a step by its number of draft tokens, in any unit; 0 and the length of the
            longest draft are among the numbers.

    Returns:
        one threshold for each token of the longest draft.

    >>> [round(least, 3) for least in acceptance_thresholds({0: 50.0, 2: 51.0, 3: 55.0})]
    [0.05, 0.05, 0.22]
    """
    hull: list[tuple[int, float]] = []
    for point in sorted(costs.items()):
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-2], point):
            hull.pop()
        hull.append(point)
    thresholds: list[float] = []
    for start, end in itertools.pairwise(hull):
        gain = _TOKENS_PER_STEP * max(0.0, _slope(start, end)) / costs[0]
        threshold = max(_LEAST, min(1.0, gain ** (1 / _CALIBRATION)))
        thresholds += [threshold] * (end[0] - start[0])
    return tuple(thresholds)


def _slope(start: tuple[int, float], end: tuple[int, float]) -> float:
    return (end[1] - start[1]) / (end[0] - start[0])
