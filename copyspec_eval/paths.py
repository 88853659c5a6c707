"""Where things lie: the task definitions, the embedded model, and the user's local data."""

from __future__ import annotations

import os
from pathlib import Path

DATA_DIR_VARIABLE = "COPYSPEC_DATA_DIR"
TINY = "copyspec-tiny"
"""Name of the embedded model."""


def tasks_dir() -> Path:
    """Folder with one folder per task; in a checkout `copyspec_eval/tasks` is a link to it."""
    return Path(__file__).with_name("tasks").resolve()


def model_path(name: str) -> str:
    """`name` as transformers loads it: a folder for the embedded model, others as they are."""
    return str(Path(__file__).resolve().parent / "tiny" / "model") if name == TINY else name


def data_dir() -> Path | None:
    """`$COPYSPEC_DATA_DIR`, the folder of local copies of the public data sets, if it is set."""
    value = os.environ.get(DATA_DIR_VARIABLE)
    return Path(value) if value else None
