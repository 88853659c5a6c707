"""The files of a report: leaderboard in three forms, and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from copyspec_eval import journal
from copyspec_eval.redaction import shareable
from copyspec_eval.reports.leaderboard import Leaderboard
from copyspec_eval.reports.leaderboard_forms import as_json, as_markdown, csv_files
from copyspec_eval.reports.page.build import build


def write(board: Leaderboard, folder: Path) -> list[Path]:
    """Write all files into `folder`; everything is made before anything is written.

    They are meant to be shared, so notes name files without the folders of this machine.

    Raises:
        DataError: a file cannot be written; those written before are whole.
    """
    board = replace(board, notes=[shareable(note) for note in board.notes])
    texts = {"LEADERBOARD.md": as_markdown(board), "leaderboard.json": as_json(board)}
    texts |= csv_files(board) | {"report.html": build(board)}
    for name, text in texts.items():
        journal.replace(folder / name, text)
    return [folder / name for name in texts]
