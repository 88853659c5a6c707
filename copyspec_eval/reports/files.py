"""The files of a run, and of a report: the leaderboard in three forms, and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from copyspec_eval import journal
from copyspec_eval.redaction import shareable
from copyspec_eval.reports.leaderboard import Leaderboard
from copyspec_eval.reports.leaderboard_forms import as_json, as_markdown, csv_files
from copyspec_eval.reports.page.build import build

_RUN_FILES = {
    "results_*.json": "lm-eval's results",
    "samples_*.jsonl": "prompts, answers and scores",
    "turns*.jsonl": "counts, times and tokens of every turn",
    "report.html": "a page for the browser: charts, and every answer with its copied text",
    "manifest.json": "hardware, versions, settings and command",
}


def listing(folder: Path) -> str:
    newest = {pattern: max(folder.rglob(pattern), default=None) for pattern in _RUN_FILES}
    places = {
        path.parent / pattern: _RUN_FILES[pattern] for pattern, path in newest.items() if path
    }
    return "".join(f"{place}: {what}\n" for place, what in places.items())


def write(board: Leaderboard, folder: Path) -> list[Path]:
    """Write all files into `folder`; everything is made before anything is written.

    They are meant to be shared, so notes name files without the folders of this machine.
    """
    board = replace(board, notes=[shareable(note) for note in board.notes])
    texts = {"LEADERBOARD.md": as_markdown(board), "leaderboard.json": as_json(board)}
    texts |= csv_files(board) | {"report.html": build(board)}
    for name, text in texts.items():
        journal.replace(folder / name, text)
    return [folder / name for name in texts]
