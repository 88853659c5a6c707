"""The figures of a replay, in total, per turn and per category."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from pytablewriter import MarkdownTableWriter

from copyspec_eval.reports.summary import METRICS, TurnCounts, evaluate

_RATIOS = ("tokens_per_forward", "copied_share", "drafted_per_token", "accepted_per_attempt")

Figures = dict[str, "float | int | None"]


class ReplayedCounts(TurnCounts, Protocol):
    """A turn's counts, all known, with what they are grouped by."""

    @property
    def num_tokens(self) -> int: ...
    @property
    def num_forwards(self) -> int: ...
    @property
    def num_attempts(self) -> int: ...
    @property
    def num_drafted(self) -> int: ...
    @property
    def turn(self) -> int: ...
    @property
    def category(self) -> str: ...


def values(turns: Sequence[ReplayedCounts], token_cost: float) -> Figures:
    """Sums of turns, tokens, forwards and attempts, and the ratios of `summary.METRICS`.

    `cost_per_token` is (forwards + token_cost * drafted tokens) / tokens: the time per token in
    steps of one token, so that plain decoding has 1. A ratio without a denominator (no attempt was
    made) is None.
    """
    ratios = {metric.name: evaluate(metric, turns) for metric in METRICS if metric.name in _RATIOS}
    known = {name: None if math.isnan(ratio) else ratio for name, ratio in ratios.items()}
    tokens = sum(turn.num_tokens for turn in turns)
    forwards = sum(turn.num_forwards for turn in turns)
    drafted = sum(turn.num_drafted for turn in turns)
    return {
        "turns": len(turns),
        "tokens": tokens,
        "forwards": forwards,
        "tokens_per_forward": known["tokens_per_forward"],
        "copied_share": known["copied_share"],
        "drafted_per_token": known["drafted_per_token"],
        "cost_per_token": (forwards + token_cost * drafted) / tokens,
        "attempts": sum(turn.num_attempts for turn in turns),
        "accepted_per_attempt": known["accepted_per_attempt"],
    }


def figures(
    turns: Sequence[ReplayedCounts], token_cost: float
) -> dict[str, Figures | dict[str, Figures]]:
    """`{"total": {…}, "by_turn": {"1": {…}}, "by_category": {…}}`, each as `values` gives it."""
    return {
        "total": values(turns, token_cost),
        "by_turn": _grouped(turns, lambda turn: str(turn.turn), token_cost),
        "by_category": _grouped(turns, lambda turn: turn.category, token_cost),
    }


def render(turns: Sequence[ReplayedCounts], token_cost: float) -> str:
    """The same as a Markdown table, a row per group."""
    groups = {"all": values(turns, token_cost)}
    by_turn = _grouped(turns, lambda turn: str(turn.turn), token_cost)
    groups |= {f"turn {name}": group for name, group in by_turn.items()}
    groups |= _grouped(turns, lambda turn: turn.category, token_cost)
    lines = [[name, *(_cell(value) for value in group.values())] for name, group in groups.items()]
    writer = MarkdownTableWriter(headers=["", *groups["all"]], value_matrix=lines)
    rendered: str = writer.dumps()
    return rendered


def _grouped(
    turns: Sequence[ReplayedCounts], key: Callable[[ReplayedCounts], str], token_cost: float
) -> dict[str, Figures]:
    names = sorted({key(turn) for turn in turns})
    return {
        name: values([turn for turn in turns if key(turn) == name], token_cost) for name in names
    }


def _cell(value: float | int | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.3f}"
