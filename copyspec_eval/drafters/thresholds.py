"""The acceptance threshold: from which probability a draft token saves more time than it costs."""

import functools

import numpy

_TOKENS_PER_STEP = 1.5
"""Tokens per one-token step's time that drafting gives on average: what a longer step forgoes."""
_LEAST = 0.0006  # where tokens cost nothing, drafting them still does
_COST = 0.02  # of a draft token until there were enough steps
_FEWEST = 16
_DECAY = 0.995  # by which a step's weight falls at the next one: some 200 steps count


def acceptance_threshold(cost: float) -> float:
    """The least probability of being accepted at which to draft a token.

    `cost` is what a draft token adds to a step's time, as a share of a step without drafts: time in
    which other steps would give tokens. In a long copy a token is worth less than this supposes;
    see `marginal_values`.

    >>> acceptance_threshold(0.02), acceptance_threshold(0.0)
    (0.03, 0.0006)
    """
    return max(_LEAST, min(1.0, _TOKENS_PER_STEP * cost))


@functools.lru_cache
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
    values: list[float] = []
    for percent in range(101):
        likely, tokens, least = 1.0, 0.0, 1.0 / _TOKENS_PER_STEP
        for length in range(longest + 1):
            tokens += likely
            likely *= percent / 100
            least = min(least, (1.0 + length * threshold / _TOKENS_PER_STEP) / tokens)
        values.append(least * _TOKENS_PER_STEP)
    return tuple(values)


class StepClock:
    """Learns while decoding what a draft token costs, unless it is given a `cost`.

    By least squares it fits the seconds of an engine's steps: so many for any step, more for each
    row, and more for each draft token.

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
        # Of 1, rows and draft tokens: sums of their products with each other and with seconds.
        self._products = numpy.zeros((3, 4))

    def add(self, num_rows: int, num_drafted: int, seconds: float) -> None:
        """Count a step of so many rows, and draft tokens of all rows together."""
        self._products *= _DECAY
        step = numpy.array((1.0, num_rows, num_drafted, seconds))
        self._products += step[:3, None] * step

    def threshold(self, num_rows: int) -> float:
        """As `acceptance_threshold`, for a draft in a step of `num_rows` rows.

        A draft token lengthens the step for all rows and helps one, so it counts for each of them.
        """
        # Of two digits, so that `marginal_values` are not computed anew after every step.
        return float(f"{acceptance_threshold(num_rows * self._cost(num_rows)):.1e}")

    def _cost(self, num_rows: int) -> float:
        """Of a draft token, as a share of a step without any."""
        if self._given_cost is not None:
            return self._given_cost
        products, weight = self._products[:, :3], float(self._products[0, 0])
        spread = weight * products[2, 2] - products[0, 2] ** 2
        if weight < _FEWEST * _DECAY**_FEWEST or spread <= 1e-9 * weight * products[2, 2]:
            return _COST
        start, row, token = numpy.linalg.lstsq(products, self._products[:, 3], rcond=1e-10)[0]
        plain = max(1e-9, start + num_rows * row)
        # Noise can make it dearer than the row that it is in.
        return float(min(max(0.0, token / plain), 1 / num_rows))
