"""Acceptance thresholds: from which probability a draft token saves more time than it costs."""

import functools
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from copyspec_eval.types import Draft

_TOKENS_PER_STEP = 1.5
"""Tokens per one-token step's time that drafting gives on average: what a longer step forgoes."""
_LEAST = 0.0006  # where tokens cost nothing, drafting them still does


def acceptance_thresholds(costs: Mapping[int, float]) -> tuple[float, ...]:
    """For each token of the longest draft, the least probability at which to draft it.

    `costs` are times of a step by its number of draft tokens, 0 and the longest draft's included.
    One more token adds its probability of being accepted to what a step gives, and the slope of
    `costs` to what it takes. Costs are linear between the measured numbers of tokens. A number
    whose cost lies above the line between its neighbours is left out, so thresholds never fall. In
    a long copy a token is worth less than this supposes; see `marginal_values`.

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
def marginal_values(thresholds: tuple[float, ...]) -> tuple[float, ...]:
    """What an accepted token saves, at index `int(100 * p)` of its probability p, at most 1.

    In a copy that goes on, one more token in this draft is one less in the next: it saves what a
    token costs there. If every token were accepted with probability p, that would be, with drafts
    of the best length K, `c(K) / (1 + p + … + p^K)`. The most that is saved, 1 here, is what tokens
    cost on average.

    >>> by_hundredths = marginal_values((0.015,) * 96)  # a token costs a hundredth of a step
    >>> [round(by_hundredths[percent], 2) for percent in (0, 30, 60, 90, 97)]
    [1.0, 1.0, 0.65, 0.2, 0.09]
    """
    costs = [1.0]
    for threshold in thresholds:
        costs.append(costs[-1] + threshold / _TOKENS_PER_STEP)
    values: list[float] = []
    for percent in range(101):
        likely, tokens, least = 1.0, 0.0, 1.0 / _TOKENS_PER_STEP
        for cost in costs:
            tokens += likely
            likely *= percent / 100
            least = min(least, cost / tokens)
        values.append(least * _TOKENS_PER_STEP)
    return tuple(values)


def marginal_costs(costs: Mapping[int, float]) -> tuple[float, ...]:
    """What 0, 1, 2, … draft tokens in a step cost, in tokens that its time would give otherwise.

    >>> [round(cost, 2) for cost in marginal_costs({0: 50.0, 1: 55.0, 3: 56.0})]
    [0.0, 0.15, 0.16, 0.18]
    """
    totals = [0.0]
    for start, end in itertools.pairwise(sorted(costs.items())):
        slope = _TOKENS_PER_STEP * _slope(start, end) / costs[0]
        totals += [totals[-1] + slope * count for count in range(1, end[0] - start[0] + 1)]
    return tuple(totals)


def allocate_draft_tokens(
    drafts: Sequence[Draft], costs: Sequence[float], most_tokens: int
) -> list[Draft]:
    """The drafts of a step's rows, cut to what is worth its time in all of them together.

    The likeliest tokens stay, as many as give most, less their `marginal_costs`. They begin a
    draft, since a token is never likelier than the one before it; without a probability it counts
    as certain.

    >>> a, b = Draft((1, 2), probabilities=(0.9, 0.1)), Draft((3, 4), probabilities=(0.8, 0.7))
    >>> cut = allocate_draft_tokens([a, b], [0, 0.3, 0.5, 0.7, 0.9], most_tokens=10)
    >>> [draft.token_ids for draft in cut]
    [(1,), (3, 4)]
    """
    tokens = sorted(
        (-probability, index, row)
        for row, draft in enumerate(drafts)
        for index, probability in enumerate(draft.probabilities or [1.0] * len(draft.token_ids))
    )
    best_count, best, value = 0, 0.0, 0.0
    for count in range(1, min(len(tokens), most_tokens, len(costs) - 1) + 1):
        value -= tokens[count - 1][0]
        if value - costs[count] >= best:
            best_count, best = count, value - costs[count]
    lengths = Counter(row for _, _, row in tokens[:best_count])
    return [draft.cut(lengths[row]) for row, draft in enumerate(drafts)]


def _slope(start: tuple[int, float], end: tuple[int, float]) -> float:
    return (end[1] - start[1]) / (end[0] - start[0])
