"""What runs came to, on one screen: scores, speed and equality per task and turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pandas import Series

from copyspec_eval.errors import printable
from copyspec_eval.reports.leaderboard import Leaderboard
from copyspec_eval.reports.leaderboard_forms import figure, scores, with_interval
from copyspec_eval.reports.results import TURN_SCORE
from copyspec_eval.reports.summary import CONFIDENCE
from copyspec_eval.reports.tables import terminal, without_empty_columns


def overview(board: Leaderboard) -> str:
    """A table with a row per line and turn, and the notes."""
    headers = ["model", "task", "turn", "drafter", "answers", "runs", "score", "tok/s"]
    headers += ["baseline tok/s", f"speed-up ({CONFIDENCE:.0%})", f"median ({CONFIDENCE:.0%})"]
    headers += ["copied", "from earlier runs", "recycled", "identical"]
    rows = []
    for (place, turn), figures in board.by_turn.iterrows():
        line = board.lines.loc[place]
        last = max(number for of_line, number in board.by_turn.index if of_line == place)
        names = [line["model"], line["task"], str(turn), line["drafter"]]
        rows.append([*names, *_cells(figures, ", ".join(_scores(line, turn, turn == last)))])
    if len(set(board.lines["model"])) == 1:
        headers, rows = headers[1:], [row[1:] for row in rows]
    table = terminal(*without_empty_columns(headers, rows)) if rows else ""
    return table + "".join(f"note: {printable(note)}\n" for note in board.notes)


def _scores(line: Series[Any], turn: int, is_last: bool) -> Iterator[str]:
    """`name value` of the scores of a turn; one of the whole stands with the last turn."""
    for name, score in scores(line).items():
        of_turn = TURN_SCORE.fullmatch(name)
        if int(of_turn[2]) == turn if of_turn else is_last:
            yield f"{of_turn[1] if of_turn else name} {score}"


def _cells(figures: Series[Any], score: str) -> list[str]:
    return [
        f"{figures['turns']:.0f}",
        f"{figures['runs']:.0f}" if figures["runs"] > 1 else "",
        score,
        figure(figures, "tokens_per_second", ".0f"),
        figure(figures, "baseline_tokens_per_second", ".0f"),
        with_interval(figures, "speedup"),
        with_interval(figures, "speedup_median"),
        figure(figures, "copied_share", ".0%"),
        figure(figures, "earlier_share", ".0%"),
        figure(figures, "recycled_share", ".0%"),
        figure(figures, "identical", ".0%"),
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
