"""The README's commands marked as tested run as they are printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from byte_model import save_byte_model

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"<!-- tested -->\n```bash\n(.+?)```", README, re.DOTALL)
[SHARDS] = re.findall(r"<!-- tested, slowly -->\n```bash\n(.+?)```", README, re.DOTALL)
[QUICKSTART] = re.findall(
    r"<!-- what the quickstart runs -->\n```bash\n(.+?)```", README, re.DOTALL
)
WRITES = [
    "runs/a/turns.jsonl",
    "runs/paired/turns.jsonl",
    "runs/hf",
    "runs/lookup/turns.jsonl",
    "runs/report/report.html",
    None,
    None,
    "runs/b/turns.jsonl",
]


@pytest.fixture
def environment(questions: Path, tmp_path: Path) -> dict[str, str]:
    """That in which the commands run, with a small model."""
    save_byte_model(tmp_path / "model", eos_factor=1.7)
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MODEL": str(tmp_path / "model"),
        "COPYSPEC_DATA_DIR": str(questions),
    }


def run(block: str, folder: Path, environment: dict[str, str]) -> None:
    result = subprocess.run(
        ["bash", "-euc", block], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, f"{block}\n{result.stderr}"


def test_commands_run_as_printed(environment: dict[str, str], tmp_path: Path) -> None:
    """In one folder and in their order: later ones read what earlier ones wrote."""
    trace = {"category": "x", "turn": 1, "prompt_ids": [1, 2], "answer_ids": [1, 2]}
    (tmp_path / "traces.jsonl").write_text(json.dumps(trace))
    for block, written in zip(BLOCKS, WRITES, strict=True):
        run(block, tmp_path, environment)
        assert written is None or (tmp_path / written).exists()


@pytest.mark.slow  # each lm_eval takes ten seconds to start
def test_shards_are_merged_as_printed(environment: dict[str, str], tmp_path: Path) -> None:
    run(SHARDS, tmp_path, environment)
    assert (tmp_path / "runs" / "merged" / "turns.jsonl").exists()


def commands(text: str, output: str) -> list[list[str]]:
    """The words of each command, where `output` is the folder of its output."""
    lines = text.replace("\\\n", "").replace(output, "OUTPUT").splitlines()
    return [shlex.split(line, comments=True) for line in lines]


def test_the_quickstart_is_what_its_script_runs() -> None:
    """And the script has a test that runs it."""
    script = (REPOSITORY / "scripts" / "quickstart").read_text("utf-8")
    [given] = [
        words[words.index("lm_eval") :] for words in commands(script, "$out") if "lm_eval" in words
    ]
    evaluate, report = commands(QUICKSTART, "runs/quickstart")
    assert given == [*evaluate, "$@", ">OUTPUT/tables.md"]
    assert report in commands(script, "$out")
