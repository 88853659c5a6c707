"""What the figures mean: the only place where a metric is defined.

Every metric is a ratio of two sums over the turns shown, never a mean of ratios, so that a table's
total and its rows agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol


class TurnCounts(Protocol):
    """What a metric reads of a turn; `TurnRecord` has it, and so has a replayed turn."""

    @property
    def num_tokens(self) -> int: ...
    @property
    def num_forwards(self) -> int: ...
    @property
    def num_attempts(self) -> int: ...
    @property
    def num_drafted(self) -> int: ...
    @property
    def num_accepted(self) -> int: ...
    @property
    def prefill_seconds(self) -> float: ...
    @property
    def decode_seconds(self) -> float: ...
    @property
    def latency_seconds(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Metric:
    """A ratio of sums over turns.

    Attributes:
        name: as in every table and results file.
        numerator, denominator: a turn's part of either sum.
        timed: whether it needs seconds, which an answer from lm-eval's cache has not.
        higher_is_better: None where neither is.
    """

    name: str
    numerator: Callable[[TurnCounts], float]
    denominator: Callable[[TurnCounts], float]
    timed: bool = False
    higher_is_better: bool | None = None


METRICS: tuple[Metric, ...] = (
    # tokens / (prefill + decode seconds): what a user waits for
    Metric(
        "tokens_per_second",
        lambda turn: turn.num_tokens,
        lambda turn: turn.prefill_seconds + turn.decode_seconds,
        timed=True,
        higher_is_better=True,
    ),
    # decoded tokens / decode seconds; the first token is the prefill's
    Metric(
        "decode_tokens_per_second",
        lambda turn: turn.num_tokens - 1,
        lambda turn: turn.decode_seconds,
        timed=True,
        higher_is_better=True,
    ),
    # mean wall-clock seconds of a turn, prefill to last token
    Metric(
        "latency_seconds",
        lambda turn: turn.latency_seconds,
        lambda turn: 1,
        timed=True,
        higher_is_better=False,
    ),
    # mean generated tokens of a turn
    Metric("tokens", lambda turn: turn.num_tokens, lambda turn: 1),
    # mean target forwards of a turn, the prefill counted as one
    Metric("forwards", lambda turn: turn.num_forwards, lambda turn: 1),
    # generated tokens / target forwards; plain decoding gives exactly 1
    Metric(
        "tokens_per_forward",
        lambda turn: turn.num_tokens,
        lambda turn: turn.num_forwards,
        higher_is_better=True,
    ),
    # accepted draft tokens / generated tokens (the paper's "% copied")
    Metric("copied_share", lambda turn: turn.num_accepted, lambda turn: turn.num_tokens),
    # draft tokens offered / generated tokens: what the drafting asks of the target
    Metric("drafted_per_token", lambda turn: turn.num_drafted, lambda turn: turn.num_tokens),
    # accepted draft tokens / forwards with a draft (the paper's τ)
    Metric("accepted_per_attempt", lambda turn: turn.num_accepted, lambda turn: turn.num_attempts),
)


def ratio_of_sums(pairs: Iterable[tuple[float, float]]) -> float:
    """Sum of numerators / sum of denominators; NaN where the denominators sum to nothing.

    >>> ratio_of_sums([(10, 2), (30, 8)])
    4.0
    """
    numerator = denominator = 0.0
    for part, whole in pairs:
        numerator += part
        denominator += whole
    return numerator / denominator if denominator else float("nan")


def evaluate(metric: Metric, turns: Iterable[TurnCounts]) -> float:
    """`metric` over `turns`; NaN where its denominator sums to nothing."""
    return ratio_of_sums((metric.numerator(turn), metric.denominator(turn)) for turn in turns)
