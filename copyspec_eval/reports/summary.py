"""The only place where metrics are defined: ratios of sums over turns, unless named a median."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray
from pandas import DataFrame

Floats = NDArray[numpy.float64]
Integers = NDArray[numpy.int64]
Statistic = Callable[[Floats], Floats]
Combine = Callable[[Floats], float]
"""The figure of `[turns, columns]` values."""

CONFIDENCE = 0.95
_RESAMPLES = 2000
_MOST_WEIGHTS = 4_000_000
"""Weights that a bootstrap holds at a time: 32 MB, however many turns there are."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure over turns, from columns of `turns.frame`; a turn without one is left out."""

    name: str
    heading: str
    columns: tuple[str, ...]
    combine: Combine
    statistic: Callable[[Floats], Statistic] | None = None  # of its confidence interval, if any

    @property
    def names(self) -> tuple[str, ...]:
        """Its own, and those of the ends of its confidence interval."""
        return self.name, *(f"{self.name}_{end}" for end in ("low", "high") if self.statistic)

    def figure(self, turns: DataFrame) -> float:
        """The figure of the rows of a `turns.frame` that have its columns; NaN without any."""
        values, _ = self._values(turns)
        return self.combine(values) if len(values) else math.nan

    def interval(self, turns: DataFrame) -> tuple[float, ...]:
        """The ends of its confidence interval over the same rows, if it has one."""
        if self.statistic is None:
            return ()
        values, conversations = self._values(turns)
        return bootstrap_interval(self.statistic(values), conversations)

    def _values(self, turns: DataFrame) -> tuple[Floats, Integers]:
        """The rows, and the number of each one's conversation."""
        values = turns[list(self.columns)].to_numpy(dtype=float, na_value=math.nan)
        conversations = turns["conversation"].to_numpy(dtype=numpy.int64)
        rows = ~numpy.isnan(values).any(axis=1)
        return values[rows], conversations[rows]


def summarise(turns: DataFrame) -> dict[str, float | int | None]:
    """`turns`, `runs`, each of `ALL_METRICS`, None without a value, and its `NAME_spread`.

    Of repetitions of equal size (column `repetition`), a metric is the mean, its spread their
    standard deviation (n - 1); intervals, and metrics of others, are of all turns together.
    """
    runs = [run for _, run in turns.groupby("repetition")] if "repetition" in turns else [turns]
    answers = turns[["task", "doc_id", "turn", "repeat"]].drop_duplicates()
    figures: dict[str, float | int | None] = {"turns": len(answers), "runs": len(runs)}
    if len({len(run) for run in runs}) > 1:
        runs = [turns]
    for metric in ALL_METRICS:
        values = [metric.figure(run) for run in runs]
        figures[metric.name] = known(sum(values) / len(values))
        if len(values) > 1:
            figures[f"{metric.name}_spread"] = known(float(numpy.std(values, ddof=1)))
        ends = map(known, metric.interval(turns))
        figures |= zip(metric.names[1:], ends, strict=True)
    return figures


def known(value: float) -> float | None:
    return None if math.isnan(value) else value


def figures_by(turns: DataFrame, by: list[str]) -> DataFrame:
    """`summarise` of each group, a row per group in order of `by`, which is the index."""
    groups = turns.groupby(by, sort=True, dropna=False)
    return DataFrame([summarise(group) for _, group in groups], index=groups.size().index)


def bootstrap_interval(statistic: Statistic, clusters: Integers) -> tuple[float, float]:
    """Percentile bootstrap interval over conversations, whose turns depend on each other.

    `statistic` is of weights `[resamples, turns]`, by chunks; NaN for fewer than two clusters.
    """
    numbers, members = numpy.unique(clusters, return_inverse=True)
    count = len(numbers)
    if count < 2:
        return math.nan, math.nan
    size = max(1, min(_RESAMPLES, _MOST_WEIGHTS // max(count, len(members))))
    random = numpy.random.default_rng(0)
    drawn = []
    for start in range(0, _RESAMPLES, size):
        rows = min(size, _RESAMPLES - start)
        indices = random.integers(0, count, (rows, count)) + count * numpy.arange(rows)[:, None]
        weights = numpy.bincount(indices.ravel(), minlength=rows * count).reshape(rows, count)
        drawn.append(statistic(weights[:, members].astype(float)))
    ends = [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    low, high = numpy.quantile(numpy.concatenate(drawn), ends)
    return float(low), float(high)


def ratio_of_sums(values: Floats) -> float:
    numerator, denominator = values.sum(axis=0)
    return float(numerator / denominator) if denominator else math.nan


def share_if_drafted(values: Floats) -> float:
    """`ratio_of_sums` of the first two columns; NaN where the third, the drafted ones, is zero."""
    return ratio_of_sums(values[:, :2]) if values[:, 2].any() else math.nan


def ratio_of_rates(values: Floats) -> float:
    """One rate by another, each a ratio of sums, of `tokens, seconds, tokens, seconds, …`."""
    return float(_rates(values.sum(axis=0)))


def median_of_ratios(values: Floats) -> float:
    return float(numpy.median(_rates(values)))


def weighted_median(values: Floats, weights: Floats) -> Floats:
    """The median of ascending `values`, each repeated as often as its weight: `[resamples]`."""
    upto = weights.cumsum(axis=1)
    total = upto[:, -1:]
    lower = (upto < numpy.ceil(total / 2)).sum(axis=1)
    upper = (upto < numpy.floor(total / 2) + 1).sum(axis=1)
    return numpy.asarray((values[lower] + values[upper]) / 2)


def _rates(values: Floats) -> Floats:
    """`ratio_of_rates` of each row of `[…, 4 or more]` values."""
    with numpy.errstate(divide="ignore", invalid="ignore"):
        ratio = (values[..., 0] / values[..., 1]) / (values[..., 2] / values[..., 3])
    return numpy.asarray(ratio)


def speedup_statistic(turns: Floats) -> Statistic:
    return lambda weights: _rates(weights @ turns)


def _median_statistic(turns: Floats) -> Statistic:
    ratios = _rates(turns)
    order = numpy.argsort(ratios, kind="stable")
    return lambda weights: weighted_median(ratios[order], weights[:, order])


def _ratio(name: str, heading: str, formula: str) -> Metric:
    """A ratio of sums; the formula is "column / column"."""
    return Metric(name, heading, tuple(formula.split(" / ")), ratio_of_sums)


def _accepted(source: str, heading: str) -> Metric:
    """Accepted tokens of a source / forwards that verified a draft of it."""
    formula = f"{source}_accepted / {source}_attempts"
    return _ratio(f"{source}_accepted_per_attempt", heading, formula)


_BOTH_RATES = ("num_tokens", "seconds", "baseline_num_tokens", "baseline_seconds")
_ENDED_RATES = (*_BOTH_RATES, "ended")
_EARLIER = ("earlier_accepted", "num_tokens", "earlier_drafted")
_BASELINE_RATE = "baseline_num_tokens / baseline_seconds"

METRICS: tuple[Metric, ...] = (
    # prefill + decode seconds: what a user waits for
    _ratio("tokens_per_second", "tokens/s", "num_tokens / seconds"),
    _ratio("decode_tokens_per_second", "decode tokens/s", "decode_tokens / decode_seconds"),
    # means over turns; the latency is wall clock, prefill to last token
    _ratio("latency_seconds", "latency s", "latency_seconds / num_turns"),
    _ratio("tokens", "tokens", "num_tokens / num_turns"),
    # the prefill counts as one forward
    _ratio("forwards", "forwards", "num_forwards / num_turns"),
    _ratio("cut_share", "cut by length", "cut / num_turns"),
    # tokens that repeat themselves until the budget ends them
    _ratio("looped_share", "looped", "num_looped_tokens / num_tokens"),
    # plain decoding gives exactly 1
    _ratio("tokens_per_forward", "tokens/forward", "num_tokens / num_forwards"),
    # the paper's "% copied", and the part of it that was copied from answers of earlier runs
    _ratio("copied_share", "copied", "copied_tokens / num_tokens"),
    Metric("earlier_share", "from earlier runs", _EARLIER, share_if_drafted),
    # what the drafting asks of the target
    _ratio("drafted_per_token", "drafted/token", "drafted_tokens / num_tokens"),
    # the paper's τ
    _ratio("accepted_per_attempt", "accepted/attempt", "copied_tokens / copy_attempts"),
    _accepted("model", "model accepted/attempt"),
    # the following for paired turns only; the baseline is plain one-token decoding
    _ratio("baseline_tokens_per_second", "baseline tokens/s", _BASELINE_RATE),
    # of the answers that both decoders ended themselves: loops up to the budget copy for nothing
    Metric("speedup_ended", "speed-up (ended)", _ENDED_RATES, ratio_of_rates, speedup_statistic),
    Metric("speedup", "speed-up (all)", _BOTH_RATES, ratio_of_rates, speedup_statistic),
    Metric("speedup_median", "median", _BOTH_RATES, median_of_ratios, _median_statistic),
    # tokens equal to the baseline's; different at a near-tie; different beyond rounding
    _ratio("identical", "identical", "identical / num_turns"),
    _ratio("near_tie", "near-tie", "near_tie / num_turns"),
    _ratio("diverged", "diverged", "diverged / num_turns"),
)

ALL_METRICS: tuple[Metric, ...] = (
    *METRICS,
    _accepted("context", "τ (context)"),
    _accepted("store", "τ (store)"),
    _accepted("earlier", "τ (earlier runs)"),
)
"""What reports of runs show; lm-eval's results have `METRICS`."""
