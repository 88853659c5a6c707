"""A leaderboard as Markdown, CSV and JSON, in the layout of the paper's tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from pytablewriter import MarkdownTableWriter

from copyspec_eval.reports.leaderboard import Conditions, Leaderboard, Line
from copyspec_eval.reports.summary import METRICS


def render_markdown(found: Leaderboard) -> str:
    """The tables, the conditions, the commands and the notes."""
    numbers = numbered(found.lines)
    parts = ["# Leaderboard\n"]
    parts += [_table(cells(found.lines, numbers))] if found.lines else ["Nothing was answered.\n"]
    for task in sorted({line.task for line in found.lines}):
        of_task = [line for line in found.lines if line.task == task]
        by_category = list(_category_cells(of_task, numbers))
        if len(by_category) > 1:
            parts.append(f"## {task} by category\n\ntokens/s (speed-up)\n\n{_table(by_category)}")
    if found.lines:
        told = "".join(f"{number}. {in_words(one)}\n" for one, number in numbers.items())
        commands = sorted({command for line in found.lines for command in line.commands})
        parts.append(f"## Conditions\n\n{told}")
        parts.append("## Commands\n\n```\n" + "".join(f"{one}\n" for one in commands) + "```\n")
    if found.notes:
        parts.append("## Notes\n\n" + "".join(f"* {note}\n" for note in found.notes))
    return "\n".join(parts)


def numbered(lines: Iterable[Line]) -> dict[Conditions, int]:
    """The conditions of the lines in order, and their numbers in the tables."""
    conditions = sorted({line.conditions for line in lines})
    return {one: number for number, one in enumerate(conditions, start=1)}


def cells(lines: Sequence[Line], numbers: dict[Conditions, int]) -> list[list[str]]:
    """The main table: its headers, then a row per line; columns that are empty are left out."""
    named = {turn for line in lines for turn in line.by_turn}
    turns = sorted(named, key=lambda turn: int(turn.removeprefix("turn ")))
    headers = [
        "model",
        "task",
        "drafter",
        "answers",
        "score",
        *(f"tok/s (×) {turn}" for turn in turns),
    ]
    headers += ["plain tok/s", "speed-up", "median (95%)", "copied", "accepted/attempt"]
    headers += ["tok/forward", "identical", "date", "conditions"]
    rows = [[*_cells(line, turns), line.date, str(numbers[line.conditions])] for line in lines]
    shown = [index for index in range(len(headers)) if any(row[index] for row in rows)]
    return [[row[index] for index in shown] for row in [headers, *rows]]


def _cells(line: Line, turns: Sequence[str]) -> list[str]:
    total = line.total
    low, high = total["speedup_median_low"], total["speedup_median_high"]
    interval = "" if low is None else f" ({low:.2f} to {high:.2f})"
    return [
        line.model,
        line.task,
        line.drafter,
        str(total["turns"]),
        ", ".join(f"{name} {value:.3g}" for name, value in line.scores.items()),
        *(_speed(line.by_turn[turn]) if turn in line.by_turn else "" for turn in turns),
        number(total["baseline_tokens_per_second"], ".4g"),
        number(total["speedup"], ".2f"),
        number(total["speedup_median"], ".2f") + interval,
        number(total["copied_share"], ".0%"),
        number(total["accepted_per_attempt"], ".2f"),
        number(total["tokens_per_forward"], ".2f"),
        number(total["identical"], ".1%"),
    ]


def _category_cells(lines: Sequence[Line], numbers: dict[Conditions, int]) -> Iterator[list[str]]:
    """Headers and a row per line and turn, where some line has several categories."""
    names = {
        name for line in lines for turn in line.by_turn.values() for name in turn["by_category"]
    }
    if len(names) < 2:
        return
    yield ["model", "drafter", "turn", *sorted(names), "all", "conditions"]
    for line in lines:
        for turn, figures in line.by_turn.items():
            columns = [figures["by_category"].get(name) for name in sorted(names)]
            yield [
                line.model,
                line.drafter,
                turn.removeprefix("turn "),
                *("" if one is None else _speed(one) for one in (*columns, figures)),
                str(numbers[line.conditions]),
            ]


def _speed(figures: dict[str, Any]) -> str:
    speedup = number(figures["speedup"], ".2f")
    return number(figures["tokens_per_second"], ".4g") + (f" ({speedup})" if speedup else "")


def in_words(conditions: Conditions) -> str:
    """Conditions as a line."""
    mode = {"true": f"exact, width {conditions.width}", "false": "not exact", "": ""}
    parts = [
        conditions.hardware,
        conditions.dtype,
        f"batch {conditions.batch_size}",
        mode[conditions.exact],
        {"true": "paired", "false": "not paired"}[conditions.paired],
        conditions.settings,
        f"requests with {conditions.generation}" if conditions.generation else "",
        conditions.versions,
    ]
    return "; ".join(part for part in parts if part)


def number(value: float | None, form: str) -> str:
    """`value` in a form, or nothing."""
    return "" if value is None else format(value, form)


def _table(rows: Sequence[Sequence[str]]) -> str:
    writer = MarkdownTableWriter(headers=rows[0], value_matrix=rows[1:])
    writer.enable_ansi_escape = False
    rendered: str = writer.dumps()
    return rendered


def render_json(found: Leaderboard) -> str:
    """All figures, nothing rounded."""
    lines = [asdict(replace(line, rows=[])) for line in found.lines]
    for line in lines:
        del line["rows"]
    told = {"lines": lines, "notes": found.notes}
    return json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def render_csv(found: Leaderboard) -> str:
    """A row per line, turn and category; "all" stands for all of them."""
    names = ["turns", *(metric.name for metric in METRICS)]
    heads = ["model", "task", "drafter", *Conditions.__dataclass_fields__, "date", "scores"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*heads, "turn", "category", *names])
    for line in found.lines:
        scores = " ".join(f"{name}={value:.6g}" for name, value in line.scores.items())
        told = [line.model, line.task, line.drafter, *asdict(line.conditions).values()]
        for turn, category, figures in _parts(line):
            of_part = ["" if figures[name] is None else repr(figures[name]) for name in names]
            writer.writerow([*told, line.date, scores, turn, category, *of_part])
    return text.getvalue()


def _parts(line: Line) -> Iterable[tuple[str, str, dict[str, Any]]]:
    yield "all", "all", line.total
    for turn, figures in line.by_turn.items():
        yield turn.removeprefix("turn "), "all", figures
        for category, of_category in figures["by_category"].items():
            yield turn.removeprefix("turn "), category or "none", of_category


RENDERERS = {"md": render_markdown, "csv": render_csv, "json": render_json}
"""By what `--format` calls them."""
