"""What the figures mean: the only place where a metric is defined.

A figure over several turns is a ratio of sums, never a mean of ratios, so that a table's total and
its rows agree. The one exception, the median of per-turn speed-ups, has it in its name.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy
from scipy.stats import bootstrap

from copyspec_eval.types import Agreement

Parts = tuple[float, ...]
"""What one turn contributes to a metric."""

CONFIDENCE = 0.95
_RESAMPLES = 2000


class BaselineCounts(Protocol):
    """What a metric reads of a paired turn's baseline."""

    @property
    def num_tokens(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def agreement(self) -> Agreement: ...


class TurnCounts(Protocol):
    """What a metric reads of a turn; `TurnRecord` has it, and so has a replayed turn."""

    @property
    def num_tokens(self) -> int | None: ...
    @property
    def num_forwards(self) -> int | None: ...
    @property
    def num_prefill_tokens(self) -> int | None: ...
    @property
    def num_attempts(self) -> int | None: ...
    @property
    def num_drafted(self) -> int | None: ...
    @property
    def num_accepted(self) -> int | None: ...
    @property
    def num_copied(self) -> int | None: ...
    @property
    def seconds(self) -> float: ...
    @property
    def decode_seconds(self) -> float | None: ...
    @property
    def latency_seconds(self) -> float: ...
    @property
    def baseline(self) -> BaselineCounts | None: ...


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure over turns: what each turn contributes, and how that is put together.

    Attributes:
        name: as in every table and results file.
        parts: a turn's contribution; None where the turn does not tell.
        combine: the figure of at least one contribution; NaN where there is nothing to divide by.
        timed: whether it needs seconds, which an answer from lm-eval's cache has not.
        higher_is_better: None where neither is.
    """

    name: str
    parts: Callable[[TurnCounts], Parts | None]
    combine: Callable[[Sequence[Parts]], float]
    timed: bool = False
    higher_is_better: bool | None = None

    def total(self, contributions: Iterable[Parts | None]) -> float:
        """The figure of several turns' `parts`, those that do not tell left out; NaN for none."""
        known = [parts for parts in contributions if parts is not None]
        return self.combine(known) if known else math.nan


def evaluate(metric: Metric, turns: Iterable[TurnCounts]) -> float:
    """`metric` over `turns`; NaN where there is nothing to divide by."""
    return metric.total(metric.parts(turn) for turn in turns)


def ratio_of_sums(parts: Sequence[Parts]) -> float:
    """Sum of numerators / sum of denominators; NaN where the denominators sum to nothing.

    >>> ratio_of_sums([(10, 2), (30, 8)])
    4.0
    """
    numerator, denominator = (sum(column) for column in zip(*parts, strict=True))
    return numerator / denominator if denominator else math.nan


def ratio_of_rates(parts: Sequence[Parts]) -> float:
    """One rate by another, each a ratio of sums, of `(tokens, seconds, tokens, seconds)`.

    >>> ratio_of_rates([(10, 2, 10, 4), (30, 8, 30, 16)])
    2.0
    """
    return ratio_of_sums([part[:2] for part in parts]) / ratio_of_sums([part[2:] for part in parts])


def median_of_ratios(parts: Sequence[Parts]) -> float:
    """Median over the turns of `ratio_of_rates`.

    >>> median_of_ratios([(10, 2, 10, 4), (10, 1, 10, 4), (10, 1, 10, 1)])
    2.0
    """
    return statistics.median(ratio_of_rates([part]) for part in parts)


def median_interval(parts: Sequence[Parts], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """`bootstrap_interval` of `median_of_ratios`, turns drawn anew."""
    return _ratio_interval(tuple(ratio_of_rates([part]) for part in parts), confidence)


# Its two ends are two metrics, asked for one after the other.
@functools.lru_cache(maxsize=1)
def _ratio_interval(ratios: tuple[float, ...], confidence: float) -> tuple[float, float]:
    return bootstrap_interval(ratios, numpy.median, confidence)


def bootstrap_interval(
    values: Sequence[float], statistic: Callable[..., object], confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic of `values`; NaN for fewer than two.

    The same values always give the same interval.

    Args:
        values: one per turn or document.
        statistic: one of NumPy's, that takes an `axis`.
        confidence: between 0 and 1.
    """
    if len(values) < 2:
        return math.nan, math.nan
    drawn = bootstrap(
        (values,),
        statistic,
        n_resamples=_RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        rng=numpy.random.default_rng(0),
    ).confidence_interval
    return float(drawn.low), float(drawn.high)


def _known(*values: float | None) -> Parts | None:
    """The values, or None if one of them is."""
    parts = tuple(value for value in values if value is not None)
    return parts if len(parts) == len(values) else None


def _decoded(turn: TurnCounts) -> Parts | None:
    known = _known(turn.num_tokens, turn.num_prefill_tokens, turn.decode_seconds)
    return (known[0] - known[1], known[2]) if known else None


def _baseline_rate(turn: TurnCounts) -> Parts | None:
    return _known(turn.baseline.num_tokens, turn.baseline.seconds) if turn.baseline else None


def _both_rates(turn: TurnCounts) -> Parts | None:
    if turn.baseline is None:
        return None
    both = turn.num_tokens, turn.seconds, turn.baseline.num_tokens, turn.baseline.seconds
    return _known(*both)


def _agrees(agreement: Agreement) -> Callable[[TurnCounts], Parts | None]:
    return lambda turn: (turn.baseline.agreement == agreement, 1) if turn.baseline else None


METRICS: tuple[Metric, ...] = (
    # tokens / (prefill + decode seconds): what a user waits for
    Metric(
        "tokens_per_second",
        lambda turn: _known(turn.num_tokens, turn.seconds),
        ratio_of_sums,
        timed=True,
        higher_is_better=True,
    ),
    # tokens but the prefill's / decode seconds
    Metric(
        "decode_tokens_per_second",
        _decoded,
        ratio_of_sums,
        timed=True,
        higher_is_better=True,
    ),
    # mean wall-clock seconds of a turn, prefill to last token
    Metric(
        "latency_seconds",
        lambda turn: (turn.latency_seconds, 1),
        ratio_of_sums,
        timed=True,
        higher_is_better=False,
    ),
    # mean generated tokens of a turn
    Metric("tokens", lambda turn: _known(turn.num_tokens, 1), ratio_of_sums),
    # mean target forwards of a turn, the prefill counted as one
    Metric("forwards", lambda turn: _known(turn.num_forwards, 1), ratio_of_sums),
    # generated tokens / target forwards; plain decoding gives exactly 1
    Metric(
        "tokens_per_forward",
        lambda turn: _known(turn.num_tokens, turn.num_forwards),
        ratio_of_sums,
        higher_is_better=True,
    ),
    # accepted draft tokens that were copied / generated tokens (the paper's "% copied")
    Metric("copied_share", lambda turn: _known(turn.num_copied, turn.num_tokens), ratio_of_sums),
    # draft tokens offered / generated tokens: what the drafting asks of the target
    Metric(
        "drafted_per_token", lambda turn: _known(turn.num_drafted, turn.num_tokens), ratio_of_sums
    ),
    # accepted draft tokens / forwards with a draft (the paper's τ)
    Metric(
        "accepted_per_attempt",
        lambda turn: _known(turn.num_accepted, turn.num_attempts),
        ratio_of_sums,
    ),
    # the following of paired turns only: tokens per second of plain one-token decoding
    Metric(
        "baseline_tokens_per_second",
        _baseline_rate,
        ratio_of_sums,
        timed=True,
        higher_is_better=True,
    ),
    # tokens per second / the baseline's
    Metric("speedup", _both_rates, ratio_of_rates, timed=True, higher_is_better=True),
    # median over the turns of the same, and its bootstrap interval
    Metric("speedup_median", _both_rates, median_of_ratios, timed=True, higher_is_better=True),
    Metric(
        "speedup_median_low",
        _both_rates,
        lambda parts: median_interval(parts)[0],
        timed=True,
        higher_is_better=True,
    ),
    Metric(
        "speedup_median_high",
        _both_rates,
        lambda parts: median_interval(parts)[1],
        timed=True,
        higher_is_better=True,
    ),
    # share of turns whose tokens are the baseline's, that part at a near-tie, and that part for
    # no reason of rounding
    Metric("identical", _agrees("identical"), ratio_of_sums, higher_is_better=True),
    Metric("near_tie", _agrees("near_tie"), ratio_of_sums),
    Metric("diverged", _agrees("diverged"), ratio_of_sums, higher_is_better=False),
)
