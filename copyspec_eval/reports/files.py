"""The files of a report: leaderboard in three forms, and the page."""

from __future__ import annotations

from pathlib import Path

from copyspec_eval.reports.leaderboard import Leaderboard
from copyspec_eval.reports.leaderboard_forms import RENDERERS
from copyspec_eval.reports.page.build import build

LEADERBOARD = {"LEADERBOARD.md": "md", "leaderboard.csv": "csv", "leaderboard.json": "json"}
"""Files of a leaderboard, and their forms."""


def write(found: Leaderboard, folder: Path) -> list[Path]:
    """Write all files into `folder`; everything is made before anything is written."""
    texts = {name: RENDERERS[form](found) for name, form in LEADERBOARD.items()}
    texts["report.html"] = build(found)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]
