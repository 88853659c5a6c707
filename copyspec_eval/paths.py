"""Where things lie: the task definitions, the embedded model, and the user's local data."""

from __future__ import annotations

import os
from pathlib import Path

DATA_DIR_VARIABLE = "COPYSPEC_DATA_DIR"
TINY = "copyspec-tiny"
"""Name of the embedded model."""


def tasks_dir() -> Path:
    """Folder with one folder per task: inside the wheel, or beside a checkout's package."""
    package = Path(__file__).resolve().parent
    shipped = package / "tasks"
    return shipped if shipped.is_dir() else package.parent / "tasks"


def model_path(name: str) -> str:
    """`name` as transformers loads it: a folder for the embedded model, others as they are."""
    return str(Path(__file__).resolve().parent / "tiny" / "model") if name == TINY else name


def data_dir() -> Path | None:
    """`$COPYSPEC_DATA_DIR`, the folder of local copies of the public data sets, if it is set."""
    value = os.environ.get(DATA_DIR_VARIABLE)
    return Path(value) if value else None
