"""What runs came to, on one screen: scores, speed and equality per task and turn."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from copyspec_eval.reports.leaderboard import Leaderboard, Line
from copyspec_eval.reports.leaderboard_forms import number
from copyspec_eval.reports.recorded import OF_TURN
from copyspec_eval.reports.summary import CONFIDENCE

_LEFT = {"model", "task", "drafter", "score", "median"}


def render(found: Leaderboard, width: int | None = None) -> str:
    """A table with a row per line and turn, and the notes.

    Args:
        found: what to show.
        width: of the screen, in characters; None for as wide as it comes.
    """
    headers = ["model", "task", "turn", "drafter", "answers", "score", "tok/s", "plain tok/s"]
    headers += ["speed-up", f"median ({CONFIDENCE:.0%})", "copied", "identical"]
    lines = [cells for line in found.lines for cells in _rows(line)]
    several = len({line.model for line in found.lines}) > 1
    shown = [
        index
        for index, name in enumerate(headers)
        if any(cells[index] for cells in lines) and (several or name != "model")
    ]
    table = Table(box=box.MARKDOWN)
    for index in shown:
        left = headers[index].partition(" ")[0] in _LEFT
        table.add_column(headers[index], justify="left" if left else "right")
    for cells in lines:
        # As text, since brackets in a name are no markup.
        table.add_row(*(Text(cells[index]) for index in shown))
    screen = Console(file=io.StringIO(), width=width or 1000)
    if lines:
        screen.print(table)
    for note in found.notes:
        screen.print(Text(f"note: {note}"))
    written = screen.file
    assert isinstance(written, io.StringIO)
    # The box has empty lines above and below.
    lines_shown = (line.rstrip() for line in written.getvalue().splitlines())
    return "".join(f"{line}\n" for line in lines_shown if line)


def _rows(line: Line) -> Iterator[list[str]]:
    last = list(line.by_turn)[-1]
    for turn, figures in line.by_turn.items():
        name = turn.removeprefix("turn ")
        scores = ", ".join(_scores(line, name, turn == last))
        yield [line.model, line.task, name, line.drafter, *_cells(figures, scores)]


def _scores(line: Line, turn: str, is_last: bool) -> Iterator[str]:
    """`name value` of the scores of a turn; one of the whole stands with the last turn."""
    for name, value in line.scores.items():
        of_turn = OF_TURN.fullmatch(name)
        if of_turn[2] == turn if of_turn else is_last:
            yield f"{of_turn[1] if of_turn else name} {value:.3g}"


def _cells(figures: dict[str, Any], scores: str) -> Sequence[str]:
    low, high = (figures[f"speedup_median_{end}"] for end in ("low", "high"))
    interval = "" if low is None else f" ({low:.2f} to {high:.2f})"
    return [
        str(figures["turns"]),
        scores,
        number(figures["tokens_per_second"], ".0f"),
        number(figures["baseline_tokens_per_second"], ".0f"),
        number(figures["speedup"], ".2f"),
        number(figures["speedup_median"], ".2f") + interval,
        number(figures["copied_share"], ".0%"),
        number(figures["identical"], ".0%"),
    ]


def files(folder: Path) -> str:
    """A line per kind of file that lies in the folder of a run."""
    named = {
        "results_*.json": "lm-eval's results",
        "samples_*.jsonl": "prompts, answers and scores",
        "turns*.jsonl": "counts, times and tokens of every turn",
        "report.html": "a page for the browser: charts, and every answer with its copied text",
        "manifest.json": "hardware, versions, settings and command",
    }
    newest = {pattern: max(folder.rglob(pattern), default=None) for pattern in named}
    places = {pattern: path.parent / pattern for pattern, path in newest.items() if path}
    return "".join(f"{place}: {named[pattern]}\n" for pattern, place in places.items())
