"""The figures of one run per task, turn and category, as lm-eval shows and stores them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pandas import DataFrame

from copyspec_eval.records import TurnRecord
from copyspec_eval.reports import turns
from copyspec_eval.reports.summary import CONFIDENCE, figures_by
from copyspec_eval.reports.tables import number, terminal, without_empty_columns

_COLUMNS = {
    "tokens_per_second": "tok/s",
    "latency_seconds": "latency s",
    "tokens": "tokens",
    "forwards": "forwards",
    "tokens_per_forward": "tok/forward",
    "copied_share": "copied",
    "earlier_share": "from earlier runs",
    "recycled_share": "recycled",
    "accepted_per_attempt": "accepted/attempt",
    "model_accepted_per_attempt": "model accepted/attempt",
    "baseline_tokens_per_second": "baseline tok/s",
    "speedup": "speed-up",
    "speedup_low": f"{CONFIDENCE:.0%} from",
    "speedup_high": "to",
    "speedup_median": "median",
    "identical": "identical",
    "near_tie": "near-tie",
    "diverged": "diverged",
}


def run_figures(rows: Sequence[TurnRecord]) -> dict[str, Any]:
    """`{task: {"turn 1": {metric: value, …, "by_category": {name: {metric: value, …}}}, …}}`."""
    frame = turns.frame(rows)
    results: dict[str, Any] = {}
    for (task, turn), figures in _rows(figures_by(frame, ["task", "turn"])).items():
        results.setdefault(task, {})[f"turn {turn}"] = figures | {"by_category": {}}
    by_category = figures_by(frame, ["task", "turn", "category"])
    for (task, turn, name), figures in _rows(by_category).items():
        results[task][f"turn {turn}"]["by_category"][name] = figures
    return results


def run_table(rows: Sequence[TurnRecord]) -> str:
    """A row per task and turn, under it one per category if there are several.

    A column that has no value anywhere is left out.
    """
    results, lines = run_figures(rows), []
    names = {(row.task, row.turn): row.drafter or row.backend for row in rows}
    for task, by_turn in results.items():
        for turn, figures in by_turn.items():
            counted = int(turn.removeprefix("turn "))
            drafter = names[task, counted]
            categories = figures["by_category"]
            parts = {"all": figures} | (categories if len(categories) > 1 else {})
            lines += [[task, counted, drafter, n, *_cells(part)] for n, part in parts.items()]
    headers = ["task", "turn", "drafter", "category", "answers", *_COLUMNS.values()]
    return terminal(*without_empty_columns(headers, lines))


def _rows(figures: DataFrame) -> dict[Any, dict[str, float | int | None]]:
    """The figures of each group as JSON values; None for what has none."""
    values = figures.astype(object).where(figures.notna(), None)
    return dict(values.to_dict(orient="index"))


def _cells(figures: dict[str, Any]) -> list[str]:
    return [str(figures["turns"]), *(number(figures[name], ".4g") for name in _COLUMNS)]
