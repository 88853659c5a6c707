"""Where things lie: the task definitions, the embedded model, and the user's local data."""

import functools
import os
from importlib.metadata import EntryPoints, distribution
from pathlib import Path

DATA_DIR_VARIABLE = "COPYSPEC_DATA_DIR"
TINY = "copyspec-tiny"  # name of the embedded model


@functools.cache
def lm_eval_models() -> EntryPoints:
    """The entry points of our lm-eval models, from pyproject.toml."""
    return distribution("copyspec-eval").entry_points.select(group="lm_eval.models")


def tasks_dir() -> Path:
    """Folder with one folder per task; in a checkout `copyspec_eval/tasks` is a link to it."""
    return Path(__file__).with_name("tasks").resolve()


def model_path(name: str) -> str:
    """`name` as transformers loads it: a folder for the embedded model, others as they are."""
    return str(Path(__file__).resolve().parent / "tiny" / "model") if name == TINY else name


def data_dir() -> Path | None:
    """`$COPYSPEC_DATA_DIR`, the folder of local copies of the public data sets."""
    value = os.environ.get(DATA_DIR_VARIABLE)
    return Path(value) if value else None
