"""The README's commands marked as tested run as they are printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCKS = re.findall(r"<!-- tested -->\n```bash\n(.+?)```", README.read_text("utf-8"), re.DOTALL)
WRITES = [
    "runs/quickstart/turns.jsonl",
    "runs/a/turns.jsonl",
    "runs/paired/turns.jsonl",
    "runs/hf",
    "runs/lookup/turns.jsonl",
    None,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all commands, in their order: later ones read what earlier ones wrote."""
    made = tmp_path_factory.mktemp("readme")
    trace = {"category": "x", "turn": 1, "prompt_ids": [1, 2], "answer_ids": [1, 2]}
    (made / "traces.jsonl").write_text(json.dumps(trace))
    return made


def test_every_command_is_found() -> None:
    assert len(BLOCKS) == len(WRITES)


@pytest.mark.parametrize(("block", "written"), list(zip(BLOCKS, WRITES, strict=True)))
def test_command_runs_as_printed(
    block: str, written: str | None, byte_model: Path, questions: Path, folder: Path
) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MODEL": str(byte_model),
        "COPYSPEC_DATA_DIR": str(questions),
    }
    # The quickstart's 128 documents would take minutes; the script has a test of its own.
    short = block.replace("copyspec_quickstart", "copyspec_quickstart --limit 1")
    command = ["bash", "-euc", short]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert written is None or (folder / written).exists()
