"""`copyspec-eval paper` from end to end with a small model, killed on its way and started again."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from lm_eval_command import BIN

from copyspec_eval.paper.tables import TABLES
from copyspec_eval.reports.recorded import read_recorded


def command(table: str, model: Path, out: Path, *more: str) -> list[str]:
    start = [str(BIN / "copyspec-eval"), "paper", table, "--model", str(model), "--limit", "2"]
    return [*start, "--out", str(out), "--draft-model", str(model), *more]


def lines_of(out: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in out.glob("*/turns.jsonl"))


@pytest.mark.parametrize("kill", [os.kill, pytest.param(os.killpg, marks=pytest.mark.slow)])
def test_a_table_is_made_although_it_was_killed(byte_model, questions, tmp_path, kill):
    environment = {**os.environ, "COPYSPEC_DATA_DIR": str(questions)}
    words = command("copied-tokens", byte_model, tmp_path, "--model-args", "dtype=float64")
    silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(words, env=environment, start_new_session=True, **silent)
    while not lines_of(tmp_path):
        assert process.poll() is None
        time.sleep(0.05)
    refused = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert "another process is writing it; wait until" in refused.stderr
    kill(process.pid, signal.SIGKILL)
    process.wait()
    with next(tmp_path.glob("*/turns.jsonl")).open("ab") as rows:
        rows.write(b'{"torn": ')
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    table = done.stdout.partition("## Conditions")[0]
    rows = [line.split("|")[3].strip() for line in table.splitlines() if line.startswith("|")]
    assert rows[2:] == ["base model", "0", "1", "5", "10", "50", "100"]
    assert (tmp_path / "copied-tokens.md").read_text() == done.stdout
    assert str(tmp_path) not in done.stdout, "commands are fit to be shared"
    before = lines_of(tmp_path)
    # Beside the torn line; a kill may come between an answer's row and lm-eval's cache.
    assert before - 1 in (24, 25), "no answer twice, whoever was killed"
    again = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert again.stdout == done.stdout
    assert lines_of(tmp_path) == before, "nothing was run again"
    [folder] = tmp_path.glob("*-mt_redundant-*")
    assert read_recorded(folder).cut_short == {}
    other = subprocess.run(
        [*words, "--batch-size", "2"], env=environment, capture_output=True, text=True
    )
    assert other.returncode == 1
    assert "has a run of another command" in other.stderr


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_every_table_with_a_real_model(real_model, data_dir, table, tmp_path):
    words = command(table, real_model, tmp_path, "--model-args", "dtype=bfloat16")
    words[words.index("--limit") + 1] = "1"
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"# {TABLES[table].title}\n")
    for file in tmp_path.glob("*/manifest.json"):
        assert json.loads(file.read_text())["runs"]
