"""From which probability of being accepted on a draft token saves more time than it costs."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from copyspec_eval.types import Draft

_TOKENS_PER_STEP = 1.5
"""Tokens per one-token step's time that drafting gives on average: what a longer step forgoes."""
_LEAST = 0.0006
"""Where tokens cost nothing, drafting them still does."""


def acceptance_thresholds(costs: Mapping[int, float]) -> tuple[float, ...]:
    """Of each draft token, the least probability of being accepted at which to draft it.

    One more token adds its probability of being accepted to what a step gives, and the slope of
    `costs` to what it takes. Between the measured numbers of tokens the costs are taken to be
    linear, and a number whose cost lies above the line between its neighbours is left out, so that
    thresholds never fall. In a long copy a token is worth less than this supposes; see `worths`.

    Args:
        costs: time of a step by its number of draft tokens, in any unit; 0 and the length of the
            longest draft are among the numbers.

    Returns:
        one threshold for each token of the longest draft.

    >>> [round(least, 3) for least in acceptance_thresholds({0: 50.0, 2: 51.0, 3: 55.0})]
    [0.015, 0.015, 0.12]
    """
    hull: list[tuple[int, float]] = []
    for point in sorted(costs.items()):
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-2], point):
            hull.pop()
        hull.append(point)
    thresholds: list[float] = []
    for start, end in itertools.pairwise(hull):
        gain = _TOKENS_PER_STEP * max(0.0, _slope(start, end)) / costs[0]
        threshold = max(_LEAST, min(1.0, gain))
        thresholds += [threshold] * (end[0] - start[0])
    return tuple(thresholds)


@functools.lru_cache
def worths(thresholds: tuple[float, ...]) -> tuple[float, ...]:
    """What an accepted token saves, by its probability p, next to the most that one saves.

    In a copy that goes on, a token more in this draft is one less in the next: it saves what a
    token costs there. Were every token accepted with probability p, that would be, with drafts of
    the best length K, `c(K) / (1 + p + … + p^K)`. The most that is saved is what tokens cost on
    average.

    Args:
        thresholds: as of `acceptance_thresholds`.

    Returns:
        at index `int(100 * p)`, at most 1.

    >>> by_hundredths = worths((0.015,) * 96)  # a token costs a hundredth of a step
    >>> [round(by_hundredths[percent], 2) for percent in (0, 30, 60, 90, 97)]
    [1.0, 1.0, 0.65, 0.2, 0.09]
    """
    costs = [1.0]
    for threshold in thresholds:
        costs.append(costs[-1] + threshold / _TOKENS_PER_STEP)
    found: list[float] = []
    for percent in range(101):
        likely, tokens, least = 1.0, 0.0, 1.0 / _TOKENS_PER_STEP
        for cost in costs:
            tokens += likely
            likely *= percent / 100
            least = min(least, cost / tokens)
        found.append(least * _TOKENS_PER_STEP)
    return tuple(found)


def draft_prices(costs: Mapping[int, float]) -> tuple[float, ...]:
    """What 0, 1, 2, … draft tokens in a step cost, in tokens that its time would give otherwise.

    Args:
        costs: as for `acceptance_thresholds`.

    >>> [round(price, 2) for price in draft_prices({0: 50.0, 1: 55.0, 3: 56.0})]
    [0.0, 0.15, 0.16, 0.18]
    """
    points = sorted(costs.items())
    prices = [0.0]
    for start, end in itertools.pairwise(points):
        slope = _TOKENS_PER_STEP * _slope(start, end) / costs[0]
        prices += [prices[-1] + slope * count for count in range(1, end[0] - start[0] + 1)]
    return tuple(prices)


def share(drafts: Sequence[Draft], prices: Sequence[float], most_tokens: int) -> list[Draft]:
    """The drafts of a step's rows, cut to what is worth its time in all of them together.

    The likeliest tokens are kept, as many as give most, less their price. They begin a draft, since
    a token is never likelier than the one before it.

    Args:
        drafts: of each row; a token without a probability counts as certain.
        prices: of so many draft tokens, from 0 on, as of `draft_prices`.
        most_tokens: that there is room for.

    >>> a, b = Draft((1, 2), probabilities=(0.9, 0.1)), Draft((3, 4), probabilities=(0.8, 0.7))
    >>> [draft.token_ids for draft in share([a, b], [0, 0.3, 0.5, 0.7, 0.9], most_tokens=10)]
    [(1,), (3, 4)]
    """
    tokens = sorted(
        (-probability, index, row)
        for row, draft in enumerate(drafts)
        for index, probability in enumerate(draft.probabilities or [1.0] * len(draft.token_ids))
    )
    kept, best, value = 0, 0.0, 0.0
    for count in range(1, min(len(tokens), most_tokens, len(prices) - 1) + 1):
        value -= tokens[count - 1][0]
        if value - prices[count] >= best:
            kept, best = count, value - prices[count]
    lengths = Counter(row for _, _, row in tokens[:kept])
    return [draft.cut(lengths[row]) for row, draft in enumerate(drafts)]


def _slope(start: tuple[int, float], end: tuple[int, float]) -> float:
    return (end[1] - start[1]) / (end[0] - start[0])
