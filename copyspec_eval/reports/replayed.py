"""The figures of a replay, in total, per turn and per category."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

from pandas import DataFrame

from copyspec_eval.reports.summary import METRICS
from copyspec_eval.reports.tables import terminal
from copyspec_eval.reports.turns import counts_columns
from copyspec_eval.types import ReplayedTurn

_RATIOS = {
    *("tokens_per_forward", "copied_share", "earlier_share"),
    *("drafted_per_token", "accepted_per_attempt"),
}

Figures = dict[str, Any]


def replay_figures(turns: Iterable[ReplayedTurn], token_cost: float) -> Figures:
    """`{"total": {…}, "by_turn": {"1": {…}}, "by_category": {…}}`.

    Each is the sums of turns, tokens, forwards and attempts, and ratios of `summary.METRICS`, None
    where nothing was attempted. `cost_per_token` is (forwards + token_cost * drafted tokens) /
    tokens: the time per token in steps of one token, so that plain decoding has 1. Where answers of
    earlier runs were drafted from, `earlier_share` is how much of the tokens they gave.
    """
    rows = [
        {"turn": str(turn), "category": category, **counts_columns(counts)}
        for category, turn, counts in turns
    ]
    frame = DataFrame(rows).assign(conversation=range(len(rows)))
    seeded = bool(frame["earlier_drafted"].sum())
    figures = functools.partial(_figures, token_cost=token_cost, seeded=seeded)
    return {
        "total": figures(frame),
        "by_turn": {str(name): figures(part) for name, part in frame.groupby("turn")},
        "by_category": {str(name): figures(part) for name, part in frame.groupby("category")},
    }


def replay_table(figures: Figures) -> str:
    """The same as a table, a row per group."""
    groups = {"all": figures["total"]}
    groups |= {f"turn {name}": group for name, group in figures["by_turn"].items()}
    groups |= figures["by_category"]
    rows = [[name, *map(_cell, group.values())] for name, group in groups.items()]
    return terminal(["", *groups["all"]], rows)


def _figures(turns: DataFrame, token_cost: float, seeded: bool) -> Figures:
    ratios = {metric.name: metric.of(turns) for metric in METRICS if metric.name in _RATIOS}
    shown = {name: None if math.isnan(ratio) else ratio for name, ratio in ratios.items()}
    sums = turns[["num_tokens", "num_forwards", "drafted_tokens", "copy_attempts"]].sum()
    tokens, forwards, drafted, copies = (int(value) for value in sums)
    return {
        "turns": len(turns),
        "tokens": tokens,
        "forwards": forwards,
        "tokens_per_forward": shown["tokens_per_forward"],
        "copied_share": shown["copied_share"],
        **({"earlier_share": shown["earlier_share"]} if seeded else {}),
        "drafted_per_token": shown["drafted_per_token"],
        "cost_per_token": (forwards + token_cost * drafted) / tokens,
        "attempts": copies,
        "accepted_per_attempt": shown["accepted_per_attempt"],
    }


def _cell(value: float | int | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.3f}"
