"""The acceptance threshold: from which probability a draft token saves more time than it costs."""

import functools
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy

_TOKENS_PER_STEP = 1.5
"""Tokens per one-token step's time that drafting gives on average: what a longer step forgoes."""
_LEAST = 0.0006  # where tokens cost nothing, drafting them still does
_COST = 0.02  # of a draft token while too few steps tell
_STEPS = 256  # how many steps tell
_LEAST_INTERVAL, _INTERVAL = 16, 64  # after how many they are asked again: at first, and later
_LEAST_SPREAD = 64.0  # of the steps' draft tokens: the sum of their squared deviations
_FITS = 10  # each with less weight for the steps that are far from the one before
_FALL = 0.8  # of a cost at which too little is drafted to measure it again


def acceptance_threshold(cost: float) -> float:
    """The least probability of being accepted at which to draft a token.

    `cost` is what a draft token adds to a step's time, as a share of a step without drafts: time in
    which other steps would give tokens. In a long copy a token is worth less than this supposes;
    see `marginal_values`.

    >>> acceptance_threshold(0.02), acceptance_threshold(0.0)
    (0.03, 0.0006)
    """
    return max(_LEAST, min(1.0, _TOKENS_PER_STEP * cost))


@functools.lru_cache(maxsize=1024)
def marginal_values(threshold: float, longest: int) -> tuple[float, ...]:
    """What an accepted token saves, at index `int(100 * p)` of its probability p, at most 1.

    In a copy that goes on, one more token in this draft is one less in the next: it saves what a
    token costs there. If every token were accepted with probability p, that would be, with drafts
    of the best length K up to `longest`, `c(K) / (1 + p + … + p^K)`, where c is the time of a step.
    The most that is saved, 1 here, is what tokens cost on average.

    >>> by_hundredths = marginal_values(0.015, longest=96)  # a token costs a hundredth of a step
    >>> [round(by_hundredths[percent], 2) for percent in (0, 30, 60, 90, 97)]
    [1.0, 1.0, 0.65, 0.2, 0.09]
    """
    costs = 1.0 + numpy.arange(longest + 1) * threshold / _TOKENS_PER_STEP
    likely = numpy.repeat(numpy.arange(101)[:, None] / 100, longest + 1, axis=1)
    likely[:, 0] = 1.0
    tokens = likely.cumprod(axis=1).cumsum(axis=1)
    least = numpy.minimum((costs / tokens).min(axis=1), 1.0 / _TOKENS_PER_STEP)
    return tuple((least * _TOKENS_PER_STEP).tolist())


class StepClock:
    """Learns while decoding what a draft token costs, unless it is given a `cost`.

    By least absolute deviations it fits the seconds of an engine's last steps: so many for any
    step, more for each token, and more for each row. So a step that something else held up has no
    weight. Where too little is drafted to tell, a high cost falls, since it may be what stops
    drafting.

    >>> StepClock(cost=0.02).threshold(num_rows=1)
    0.03
    >>> clock = StepClock()
    >>> for drafted in (0, 8) * 8:
    ...     clock.add(num_rows=4, num_drafted=drafted, seconds=0.14 + 0.01 * drafted)
    >>> clock.threshold(num_rows=4)  # 1.5 * 4 * 0.01 / 0.14
    0.43
    """

    def __init__(self, cost: float | None = None) -> None:
        self._given_cost = cost
        self._steps: deque[tuple[float, ...]] = deque(maxlen=_STEPS)
        self._num_added = 0
        self._fit: Sequence[float] | None = None  # seconds of a step, of a token, more of a row

    def add(self, num_rows: int, num_drafted: int, seconds: float) -> None:
        """Count a step of so many rows, and draft tokens of all rows together."""
        self._steps.append((1.0, num_rows, num_drafted, seconds))
        self._num_added += 1
        interval = max(_LEAST_INTERVAL, min(_INTERVAL, self._num_added // 4))
        if self._given_cost is None and self._num_added % interval == 0:
            self._learn()

    def _learn(self) -> None:
        fit = _least_deviations(numpy.array(self._steps))
        if fit is None and self._fit is not None:
            step, token, row = self._fit
            plain = step + self._steps[-1][1] * (token + row)
            lower = max(_FALL * token, min(token, _COST * plain))
            fit = step, lower, row + token - lower
        self._fit = fit

    def threshold(self, num_rows: int) -> float:
        """As `acceptance_threshold`, for a draft in a step of `num_rows` rows.

        A draft token lengthens the step for all rows and helps one, so it counts for each of them.
        """
        # Of two digits, so that `marginal_values` are seldom computed anew.
        return float(f"{acceptance_threshold(num_rows * self._cost(num_rows)):.1e}")

    def _cost(self, num_rows: int) -> float:
        """Of a draft token, as a share of a step without any."""
        if self._given_cost is not None:
            return self._given_cost
        if self._fit is None:
            return _COST
        step, token, row = self._fit
        plain = max(1e-9, step + num_rows * (token + row))
        # Noise can make it dearer than the row that it is in.
        return float(min(max(0.0, token / plain), 1 / num_rows))


def _least_deviations(steps: "numpy.ndarray[Any, Any]") -> Sequence[float] | None:
    """Seconds of a step, of each token, and more of each row; None if too little was drafted.

    `steps` are rows of 1, rows, draft tokens and seconds. Where all had as many rows, a row costs
    what a token does.
    """
    ones, rows, drafted, seconds = steps.T
    if drafted.var() * len(steps) < _LEAST_SPREAD:
        return None
    columns = [ones, rows + drafted, rows][: 3 if rows.var() else 2]
    weights = ones
    for _ in range(_FITS):
        # Least squares, weighted by the inverse errors, are the least absolute deviations.
        weighted = numpy.stack(columns, axis=1) * weights[:, None]
        fit = numpy.linalg.lstsq(weighted, seconds * weights, rcond=1e-10)[0]
        errors = abs(fit @ numpy.stack(columns) - seconds)
        weights = 1 / numpy.sqrt(errors + 1e-3 * numpy.median(seconds))
    return [*fit, 0.0][:3]
