"""The Python of README and docs/api.md runs as printed, and the notebook shows marked text."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from copyspec_eval.paths import TINY, model_path

REPOSITORY = Path(__file__).resolve().parents[2]
NAMED = "Qwen/Qwen2.5-0.5B-Instruct"


def python_of(page: str) -> str:
    """What is marked on a page, in order, with the embedded model for the one that is named."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- python, tested -->\n```python\n(.+?)```", text, re.DOTALL)
    return "\n".join(blocks).replace(NAMED, model_path(TINY))


@pytest.mark.parametrize("page", ["README.md", "docs/api.md"])
def test_python_runs_as_printed(page, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(python_of(page), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert re.search(r"^\d+ tokens/s, \d+% copied$", ran.stdout, re.MULTILINE), ran.stdout
    if page == "docs/api.md":
        # How many depends on what is exact on this machine; none of so short a prompt, as a rule.
        assert re.search(r"^\d+ of \d+ tokens were not read again$", ran.stdout, re.MULTILINE)


def test_the_notebook_shows_marked_text(monkeypatch, tmp_path):
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("MODEL", model_path(TINY))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    notebook: Any = nbformat.read(REPOSITORY / "docs" / "coloured_answer.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    _, load, answer, _, compare = notebook.cells
    del load
    # On standard error, what takes long says so.
    answered, compared = (
        [output for output in cell.outputs if output.get("name") != "stderr"]
        for cell in (answer, compare)
    )
    [shown] = [output["data"]["text/html"] for output in answered]
    assert "<mark" in shown
    printed = "".join(output.get("text", "") for output in compared)
    assert printed.startswith("True\n")
