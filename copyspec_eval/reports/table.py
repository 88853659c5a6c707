"""The figures of a run per task, turn and category, as a table for people and as plain values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from pytablewriter import MarkdownTableWriter

from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.summary import CONFIDENCE, METRICS, TurnCounts, evaluate

_COLUMNS = {
    "tokens_per_second": "tok/s",
    "latency_seconds": "latency s",
    "tokens": "tokens",
    "forwards": "forwards",
    "tokens_per_forward": "tok/forward",
    "copied_share": "copied",
    "accepted_per_attempt": "accepted/attempt",
    "baseline_tokens_per_second": "baseline tok/s",
    "speedup": "speed-up",
    "speedup_median": "median",
    "speedup_median_low": f"{CONFIDENCE:.0%} from",
    "speedup_median_high": "to",
    "identical": "identical",
    "near_tie": "near-tie",
    "diverged": "diverged",
}


def values(turns: Sequence[TurnCounts]) -> dict[str, float | int | None]:
    """Every metric over `turns` and how many there are; None where a metric has no denominator."""
    results: dict[str, float | int | None] = {"turns": len(turns)}
    for metric in METRICS:
        value = evaluate(metric, turns)
        results[metric.name] = None if math.isnan(value) else value
    return results


def figures(rows: Iterable[TurnRecord]) -> dict[str, Any]:
    """`{task: {"turn 1": {metric: value, …, "by_category": {name: {metric: value, …}}}, …}}`."""
    results: dict[str, Any] = {}
    for (task, turn), turns in _grouped(rows).items():
        by_category = {name: values(part) for name, part in _by_category(turns).items()}
        results.setdefault(task, {})[f"turn {turn}"] = values(turns) | {"by_category": by_category}
    return results


def render(rows: Iterable[TurnRecord]) -> str:
    """A Markdown table: a row per task and turn, under it one per category if there are several.

    A column that has no value anywhere is left out.
    """
    groups: list[tuple[list[Any], dict[str, float | int | None]]] = []
    for (task, turn), turns in _grouped(rows).items():
        groups.append(([task, turn, ways(turns), "all", len(turns)], values(turns)))
        categories = _by_category(turns)
        if len(categories) > 1:
            for name, part in categories.items():
                groups.append(([task, turn, ways(part), name, len(part)], values(part)))
    columns = [name for name in _COLUMNS if any(metrics[name] is not None for _, metrics in groups)]
    writer = MarkdownTableWriter(
        headers=[
            "task",
            "turn",
            "drafter",
            "category",
            "answers",
            *(_COLUMNS[name] for name in columns),
        ],
        value_matrix=[
            [*group, *(_cell(metrics[name]) for name in columns)] for group, metrics in groups
        ],
    )
    rendered: str = writer.dumps()
    return rendered


def ways(rows: Iterable[TurnRecord]) -> str:
    """How the turns were drafted, in the order of their first row."""
    return ", ".join(dict.fromkeys(row.way for row in rows))


def _cell(value: float | int | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _grouped(rows: Iterable[TurnRecord]) -> dict[tuple[str, int], list[TurnRecord]]:
    groups: dict[tuple[str, int], list[TurnRecord]] = {}
    for row in sorted(rows, key=lambda row: (row.task, row.turn, row.doc_id, row.repeat)):
        groups.setdefault((row.task, row.turn), []).append(row)
    return groups


def _by_category(rows: Iterable[TurnRecord]) -> dict[str, list[TurnRecord]]:
    groups: dict[str, list[TurnRecord]] = {}
    for row in rows:
        groups.setdefault(row.category, []).append(row)
    return groups
