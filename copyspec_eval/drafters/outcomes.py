"""How likely a copied token is, by its counts and by what became of others like it."""

import functools
from collections.abc import Sequence
from typing import Literal, NamedTuple

# Each cell begins with this many accepted and rejected tokens, counted and expected alike.
_IMAGINED = 10.0
_MOST_DIGITS = 7  # matches of 64 tokens and more are not told apart
# Divided by the match's length: how many more occurrences with another continuation are imagined.
_PRIORS = {"context": 2.5, "store": 8.0}

Cell = tuple[Literal["context", "store", "resumed"], int, int]
"""What tokens that are accepted about as often have in common: where they are copied from, the
binary digits of the length of the match before them, and how often they followed it, of all."""


class Guess(NamedTuple):
    """That a token follows, with its estimated probability, which is under 1."""

    cell: Cell
    estimate: float


@functools.lru_cache(maxsize=1 << 16)  # a draft asks for the same few again and again
def guess_counted(
    source: Literal["context", "store"], length: int, count: int, total: int, weight: float = 1.0
) -> Guess:
    """The guess that a token follows which followed `count` of `total` matches of `length` tokens.

    `weight` is the probability that what followed the match is what follows at all.

    >>> guess_counted("context", length=5, count=1, total=1)  # 1 / (1 + 2.5 / 5)
    Guess(cell=('context', 3, 0), estimate=0.666...)
    >>> [guess_counted("store", 1, count, total=4).cell[2] for count in (4, 3, 2)]
    [1, 2, 3]
    """
    count = min(count, total)  # long matches are counted first, see `SuffixAutomaton`
    won = 0
    if total > 1:
        won = 1 if count == total else 2 if 2 * count > total else 3
    estimate = weight * count / (total + _PRIORS[source] / length)
    return Guess((source, min(length.bit_length(), _MOST_DIGITS), won), estimate)


def guess_resumed(run: int, estimate: float) -> Guess:
    """The guess that a copy goes on past a token that was substituted after `run` copied ones."""
    return Guess(("resumed", min(run.bit_length(), _MOST_DIGITS), 0), estimate)


class Outcomes:
    """How often tokens were accepted, by their cell, beside how often that was expected.

    A count means the same for every model and task. So the odds of an estimate are multiplied by
    the ratio of the odds counted in its cell so far to those expected there.

    >>> outcomes = Outcomes()
    >>> guess = guess_resumed(run=9, estimate=0.5)
    >>> for followed in [True] * 20 + [False] * 10:
    ...     outcomes.observe(guess, followed)
    >>> outcomes.probability(guess)  # counted 30 : 20 with those imagined, expected 25 : 25
    0.6
    """

    def __init__(self) -> None:
        self._ratios: dict[Cell, float] = {}
        self._counts: dict[Cell, tuple[float, float, float, float]] = {}

    def probability(self, guess: Guess) -> float:
        odds = guess.estimate * self._ratios.get(guess.cell, 1.0)
        return odds / (odds + 1 - guess.estimate)

    def observe(self, guess: Guess, followed: bool) -> None:
        cell, estimate = guess
        counts = self._counts.get(cell, (_IMAGINED,) * 4)
        accepted, rejected = counts[0] + followed, counts[1] + (not followed)
        expected_accepted, expected_rejected = counts[2] + estimate, counts[3] + 1 - estimate
        self._counts[cell] = accepted, rejected, expected_accepted, expected_rejected
        self._ratios[cell] = accepted * expected_rejected / (rejected * expected_accepted)


class Limits(NamedTuple):
    """How far a draft goes: a token's probability times its value has to reach the threshold.

    `longest` is in tokens, `threshold` that of `Drafter.propose`; `values` are `marginal_values`.
    """

    longest: int
    threshold: float
    values: Sequence[float]
    outcomes: Outcomes

    def score(self, reached: float, guess: Guess) -> tuple[float, float]:
        """The probability that a token is reached, as one before it is, and accepted; its worth."""
        likely = self.outcomes.probability(guess)
        probability = reached * likely
        return probability, probability * self.values[int(100 * likely)]
