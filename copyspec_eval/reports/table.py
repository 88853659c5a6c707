"""The figures of one run per task, turn and category, as lm-eval shows and stores them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pandas import DataFrame

from copyspec_eval.records import TurnRecord
from copyspec_eval.reports import turns
from copyspec_eval.reports.summary import figures_by
from copyspec_eval.reports.tables import Column, cells, metric_columns, terminal, text_column

_COLUMNS = [
    *map(text_column, ("task", "turn", "drafter", "category")),
    Column("answers", lambda row: row["turns"]),
    *metric_columns(
        ".4g",
        *("tokens_per_second", "latency_seconds", "tokens", "forwards", "tokens_per_forward"),
        *("copied_share", "earlier_share", "recycled_share"),
        *("accepted_per_attempt", "model_accepted_per_attempt"),
        *("baseline_tokens_per_second", "speedup", "speedup_low", "speedup_high"),
        *("speedup_median", "identical", "near_tie", "diverged"),
    ),
]


def run_figures(rows: Sequence[TurnRecord]) -> dict[str, Any]:
    """`{task: {"turn 1": {metric: value, …, "by_category": {name: {metric: value, …}}}, …}}`."""
    frame = turns.frame(rows)
    results: dict[str, Any] = {}
    for (task, turn), figures in _figures_by(frame, ["task", "turn"]).items():
        results.setdefault(task, {})[f"turn {turn}"] = figures | {"by_category": {}}
    for (task, turn, name), figures in _figures_by(frame, ["task", "turn", "category"]).items():
        results[task][f"turn {turn}"]["by_category"][name] = figures
    return results


def run_table(rows: Sequence[TurnRecord]) -> str:
    """A row per task and turn, under it one per category if there are several."""
    names = {(row.task, f"turn {row.turn}"): row.drafter or row.backend for row in rows}
    lines = []
    for task, by_turn in run_figures(rows).items():
        for turn, figures in by_turn.items():
            labels = {"task": task, "turn": turn.removeprefix("turn ")}
            labels["drafter"] = names[task, turn]
            categories = figures["by_category"] if len(figures["by_category"]) > 1 else {}
            lines += [
                labels | {"category": name} | part
                for name, part in [("all", figures), *categories.items()]
            ]
    return terminal(*cells(_COLUMNS, DataFrame(lines, dtype=object)))


def _figures_by(frame: DataFrame, by: list[str]) -> dict[Any, dict[str, float | int | None]]:
    """The figures of each group as JSON values; None for what has none."""
    figures = figures_by(frame, by)
    return dict(figures.astype(object).where(figures.notna(), None).to_dict(orient="index"))
