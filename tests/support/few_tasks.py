"""lm-eval as it is installed, but without the tasks that come with it.

Each start of `lm_eval` reads all of their 14,000 files, which takes longer than most tests.
`test_doors` starts it with all of them.
"""

import importlib.util
from pathlib import Path


def link_lm_eval(folder: Path) -> None:
    """Make `folder/lm_eval`, the installed package by links; `folder` is for PYTHONPATH."""
    spec = importlib.util.find_spec("lm_eval")
    assert spec is not None
    assert spec.origin is not None
    installed, linked = Path(spec.origin).parent, folder / "lm_eval"
    (linked / "tasks").mkdir(parents=True)
    for path in installed.iterdir():
        if path.name not in ("tasks", "__pycache__"):
            (linked / path.name).symlink_to(path)
    for path in (installed / "tasks").glob("*.py"):
        (linked / "tasks" / path.name).symlink_to(path)
