"""The figures of a replay, in total, per turn and per category."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from pandas import DataFrame

from copyspec_eval.reports.summary import METRICS
from copyspec_eval.reports.tables import number, terminal
from copyspec_eval.reports.turns import counts_columns
from copyspec_eval.types import ReplayedTurn

_RATIOS = ("tokens_per_forward", "copied_share", "earlier_share", "drafted_per_token")
_METRICS = {metric.name: metric for metric in METRICS}


def replay_figures(turns: Iterable[ReplayedTurn], token_cost: float) -> dict[str, Any]:
    """`{"total": {…}, "by_turn": {"1": {…}}, "by_category": {…}}`: sums, and ratios of `METRICS`.

    `cost_per_token` is in steps of one token, so that plain decoding has 1. Where answers of
    earlier runs were drafted from, `earlier_share` is the share of the tokens that they gave.
    """
    rows = [
        {"turn": str(each.turn), "category": each.category, **counts_columns(each.counts)}
        for each in turns
    ]
    frame = DataFrame(rows).assign(conversation=range(len(rows)))
    unused = set() if frame["earlier_drafted"].sum() else {"earlier_share"}

    def ratio(name: str, part: DataFrame) -> float | None:
        value = _METRICS[name].figure(part)
        return None if math.isnan(value) else value

    def figures(part: DataFrame) -> dict[str, Any]:
        names = ["num_tokens", "num_forwards", "drafted_tokens", "copy_attempts"]
        tokens, forwards, drafted, attempts = (int(total) for total in part[names].sum())
        return {
            "turns": len(part),
            "tokens": tokens,
            "forwards": forwards,
            **{name: ratio(name, part) for name in _RATIOS if name not in unused},
            "cost_per_token": (forwards + token_cost * drafted) / tokens,
            "attempts": attempts,
            "accepted_per_attempt": ratio("accepted_per_attempt", part),
        }

    return {
        "total": figures(frame),
        "by_turn": {str(name): figures(part) for name, part in frame.groupby("turn")},
        "by_category": {str(name): figures(part) for name, part in frame.groupby("category")},
    }


def replay_table(figures: dict[str, Any]) -> str:
    groups = {"all": figures["total"]}
    groups |= {f"turn {name}": group for name, group in figures["by_turn"].items()}
    groups |= figures["by_category"]
    rows = [
        [name, *(number(each, "" if isinstance(each, int) else ".3f") for each in group.values())]
        for name, group in groups.items()
    ]
    return terminal(["", *groups["all"]], rows)
