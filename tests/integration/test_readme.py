"""The README's commands marked as tested run as they are printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

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


def test_commands_run_as_printed(byte_model: Path, questions: Path, tmp_path: Path) -> None:
    """In one folder and in their order: later ones read what earlier ones wrote."""
    trace = {"category": "x", "turn": 1, "prompt_ids": [1, 2], "answer_ids": [1, 2]}
    (tmp_path / "traces.jsonl").write_text(json.dumps(trace))
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MODEL": str(byte_model),
        "COPYSPEC_DATA_DIR": str(questions),
    }
    for block, written in zip(BLOCKS, WRITES, strict=True):
        # The quickstart's 128 documents would take minutes; the script has a test of its own.
        short = block.replace("copyspec_quickstart", "copyspec_quickstart --limit 1")
        result = subprocess.run(
            ["bash", "-euc", short], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert result.returncode == 0, f"{block}\n{result.stderr}"
        assert written is None or (tmp_path / written).exists()
