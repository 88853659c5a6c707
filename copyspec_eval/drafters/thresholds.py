"""The acceptance threshold: from which probability a draft token saves more time than it costs."""

import functools
from collections import deque
from typing import Any

import numpy

_TOKENS_PER_STEP = 1.5
"""Tokens per one-token step's time that drafting gives on average where draft tokens are cheap."""
_LEAST = 0.0006  # where tokens cost nothing, drafting them still does
_COST = 0.02  # of a draft token while too few steps tell
_STEPS = 256  # how many steps tell
_LEAST_INTERVAL, _INTERVAL = 16, 64  # after how many they are asked again: at first, and later
_LEAST_STEPS = 8  # that tell how long one of as many rows takes
_LEAST_CHANGE = 64.0  # of the draft tokens from step to step: the sum of its squares
_NOISE = 0.5  # of a step's time; of two that differ by more than drafts explain, one was held up
_FALL = 0.8  # of a cost at which too little is drafted to measure it again


def acceptance_threshold(cost: float) -> float:
    """The least probability of being accepted at which to draft a token.

    `cost` is what a draft token adds to a step's time, as a share of a step without drafts: time in
    which other steps would give tokens: 1.5 in the time of a step without drafts if draft tokens
    are cheap, and 1 if one costs as much as a step, since nothing is drafted then. In a long copy a
    token is worth less than this supposes; see `marginal_values`.

    >>> [acceptance_threshold(cost) for cost in (0.0, 0.02, 0.6, 1.0)]
    [0.0006, 0.03, 0.72, 1.0]
    """
    cost = min(1.0, cost)
    tokens_per_step = _TOKENS_PER_STEP - (_TOKENS_PER_STEP - 1) * cost
    # Of two digits, so that `marginal_values` are seldom computed anew.
    return max(_LEAST, float(f"{cost * tokens_per_step:.1e}"))


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
    # The cost, or somewhat less where it is high.
    costs = 1.0 + numpy.arange(longest + 1) * threshold / _TOKENS_PER_STEP
    likely = numpy.repeat(numpy.arange(101)[:, None] / 100, longest + 1, axis=1)
    likely[:, 0] = 1.0
    tokens = likely.cumprod(axis=1).cumsum(axis=1)
    least = numpy.minimum((costs / tokens).min(axis=1), 1.0 / _TOKENS_PER_STEP)
    return tuple((least * _TOKENS_PER_STEP).tolist())


class StepClock:
    """Learns while decoding what a draft token costs, unless it is given a `cost`.

    A machine is slower for some seconds than for others, so only consecutive steps are compared: by
    how much the later one took longer for each draft token that it had more. A token costs the
    median of these slopes, weighted by the tokens, leaving out steps that something clearly held
    up, e.g. another program. A step without drafts takes the median of what is left of steps with
    as many rows; where these are few, of all, as if a row cost what a token does. Where too little
    is drafted to tell, a high cost falls, since it may be what stops drafting.

    >>> StepClock(cost=0.02).threshold(num_rows=1)
    0.03
    >>> clock = StepClock()
    >>> for drafted in (0, 8) * 8:
    ...     clock.add(num_rows=4, num_drafted=drafted, seconds=0.14 + 0.01 * drafted)
    >>> clock.threshold(num_rows=4)  # of a cost of 4 * 0.01 / 0.14
    0.39
    """

    def __init__(self, cost: float | None = None) -> None:
        self._given_cost = cost
        self._steps: deque[tuple[int, int, float]] = deque(maxlen=_STEPS)
        self._num_added = 0
        self._token: float | None = None  # seconds of a draft token
        self._step = 0.0  # of a step without drafts or rows
        self._plain: dict[int, float] = {}  # of steps without drafts, by their rows

    def add(self, num_rows: int, num_drafted: int, seconds: float) -> None:
        """Count a step of so many rows, and draft tokens of all rows together."""
        self._steps.append((num_rows, num_drafted, seconds))
        self._num_added += 1
        interval = max(_LEAST_INTERVAL, min(_INTERVAL, self._num_added // 4))
        if self._given_cost is None and self._num_added % interval == 0:
            self._learn()

    def _learn(self) -> None:
        rows, drafted, seconds = steps = numpy.array(self._steps).T
        more_rows, more_drafted, longer = numpy.diff(steps)
        # A draft token costs at most what a row does.
        most = numpy.median(seconds) * (_NOISE + abs(more_drafted) / rows[1:])
        token = _slope(more_drafted * (more_rows == 0) * (abs(longer) <= most), longer)
        if token is not None:
            self._token, left = token, seconds - token * drafted
            self._step = float(numpy.median(left - token * rows))
            enough = [n for n in {*rows} if (rows == n).sum() >= _LEAST_STEPS]
            self._plain = {int(n): float(numpy.median(left[rows == n])) for n in enough}
        elif self._token is not None:
            highest = _COST * self._seconds(self._steps[-1][0])
            self._token = max(_FALL * self._token, min(self._token, highest))

    def threshold(self, num_rows: int) -> float:
        """As `acceptance_threshold`, for a draft in a step of `num_rows` rows.

        A draft token lengthens the step for all rows and helps one, so it counts for each of them.
        """
        return acceptance_threshold(num_rows * self._cost(num_rows))

    def _cost(self, num_rows: int) -> float:
        """Of a draft token, as a share of a step without any."""
        if self._token is None:
            return _COST if self._given_cost is None else self._given_cost
        return self._token / max(1e-9, self._seconds(num_rows))

    def _seconds(self, num_rows: int) -> float:
        """Of a step without drafts."""
        return self._plain.get(num_rows, self._step + num_rows * (self._token or 0.0))


def _slope(more: "numpy.ndarray[Any, Any]", longer: "numpy.ndarray[Any, Any]") -> float | None:
    """The weighted median of `longer / more`, at least 0; None if there is too little `more`."""
    if (more**2).sum() < _LEAST_CHANGE:
        return None
    changed = more != 0
    slopes, weights = longer[changed] / more[changed], abs(more[changed])
    order = numpy.argsort(slopes)
    upto = weights[order].cumsum()
    return max(0.0, float(slopes[order][numpy.searchsorted(upto, upto[-1] / 2)]))
