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
WRITES = ["runs/a/turns.jsonl", "runs/hf", None]


def test_every_command_is_found() -> None:
    assert len(BLOCKS) == len(WRITES)


@pytest.mark.parametrize(("block", "written"), list(zip(BLOCKS, WRITES, strict=True)))
def test_command_runs_as_printed(
    block: str, written: str | None, byte_model: Path, questions: Path, tmp_path: Path
) -> None:
    trace = {"category": "x", "turn": 1, "prompt_ids": [1, 2], "answer_ids": [1, 2]}
    (tmp_path / "traces.jsonl").write_text(json.dumps(trace))
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MODEL": str(byte_model),
        "COPYSPEC_DATA_DIR": str(questions),
    }
    command = ["bash", "-euc", block]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert written is None or (tmp_path / written).exists()
