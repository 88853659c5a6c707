"""What a run came to, on one screen: scores, speed and equality per task and turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pytablewriter import MarkdownTableWriter

from copyspec_eval import records
from copyspec_eval.errors import DataError
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports import table
from copyspec_eval.reports.runs import Scores, read_run
from copyspec_eval.reports.summary import CONFIDENCE, METRICS

_OF_TURN = re.compile(r"(.+)_turn(\d+)")
_NOT_SCORES = {metric.name for metric in METRICS} | {"answered"}


def render(folder: Path) -> str:
    """Markdown: a table with a row per task and turn, and the files that there are.

    Where turns were answered in several runs into the folder, each one's last answer counts.

    Raises:
        DataError: no such folder, no records in it, or its files are broken.
    """
    scores = read_run(folder).scores
    files = sorted(folder.glob("turns*.jsonl"))
    rows = {(r.task, r.doc_id, r.turn, r.repeat): r for file in files for r in records.read(file)}
    if not rows:
        raise DataError(f"{folder}: no turns*.jsonl; only runs of our models leave them")
    lines = list(_lines(list(rows.values()), scores))
    headers = ["task", "turn", "drafter", "answers", "score", "tok/s", "plain tok/s", "speed-up"]
    headers += [f"median ({CONFIDENCE:.0%})", "copied", "identical"]
    shown = [index for index in range(len(headers)) if any(line[index] for line in lines)]
    writer = MarkdownTableWriter(
        headers=[headers[index] for index in shown],
        value_matrix=[[line[index] for index in shown] for line in lines],
    )
    return f"{writer.dumps()}\n{_listed(folder)}"


def _lines(rows: Sequence[TurnRecord], scores: Scores) -> list[list[str]]:
    lines = []
    for task, turns in table.figures(rows).items():
        numbers = [int(name.removeprefix("turn ")) for name in turns]
        of_task = _scores_by_turn(scores.get(task, {}), last_turn=max(numbers))
        for number, figures in zip(numbers, turns.values(), strict=True):
            way = table.ways(row for row in rows if (row.task, row.turn) == (task, number))
            lines.append([task, str(number), way, *_cells(figures, of_task.get(number, []))])
    return lines


def _cells(figures: dict[str, Any], scores: Sequence[str]) -> list[str]:
    low, high = (figures[f"speedup_median_{end}"] for end in ("low", "high"))
    interval = "" if low is None else f" ({low:.2f} to {high:.2f})"
    return [
        str(figures["turns"]),
        ", ".join(scores),
        _number(figures["tokens_per_second"], ".0f"),
        _number(figures["baseline_tokens_per_second"], ".0f"),
        _number(figures["speedup"], ".2f"),
        _number(figures["speedup_median"], ".2f") + interval,
        _number(figures["copied_share"], ".0%"),
        _number(figures["identical"], ".0%"),
    ]


def _scores_by_turn(scores: dict[str, dict[int, float]], last_turn: int) -> dict[int, list[str]]:
    """`name value` of each metric that is a score, by turn; one of the whole with the last turn."""
    found: dict[int, list[str]] = {}
    for metric, by_document in scores.items():
        name = metric.partition(",")[0]
        of_turn = _OF_TURN.fullmatch(name)
        name, turn = (of_turn[1], int(of_turn[2])) if of_turn else (name, last_turn)
        if name not in _NOT_SCORES:
            found.setdefault(turn, []).append(f"{name} {fmean(by_document.values()):.3g}")
    return found


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _listed(folder: Path) -> str:
    """A line per kind of file that lies in the folder."""
    named = {
        "results_*.json": "lm-eval's results",
        "samples_*.jsonl": "prompts, answers and scores",
        "turns*.jsonl": "counts, times and tokens of every turn",
        "manifest.json": "hardware, versions, settings and command",
    }
    newest = {pattern: max(folder.rglob(pattern), default=None) for pattern in named}
    places = {pattern: path.parent / pattern for pattern, path in newest.items() if path}
    return "".join(f"{place}: {named[pattern]}\n" for pattern, place in places.items())
