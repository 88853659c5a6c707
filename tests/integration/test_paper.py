"""`copyspec-eval paper` from end to end with a small model, killed on its way and started again."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from lm_eval_command import BIN

from copyspec_eval import records
from copyspec_eval.cli import main
from copyspec_eval.paper.tables import TABLES
from copyspec_eval.reports.recorded import read_recorded


def words(table: str, model: Path, out: Path, *more: str) -> list[str]:
    both = ["--model", str(model), "--draft-model", str(model)]
    return ["paper", table, *both, "--out", str(out), *more]


def num_lines(out: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in out.glob("*/turns.jsonl"))


@pytest.mark.parametrize("kill", [os.kill, pytest.param(os.killpg, marks=pytest.mark.slow)])
def test_a_table_is_made_although_it_was_killed(byte_model, our_questions, tmp_path, kill, capsys):
    short = ("--limit", "2", "--gen-kwargs", "max_gen_toks=40", "--model-args", "dtype=float64")
    command = words("copied-tokens", byte_model, tmp_path, *short)
    process = subprocess.Popen([BIN / "copyspec-eval", *command], start_new_session=True)
    while num_lines(tmp_path) <= 12:  # of six arms each, two answers and part of the third
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGSTOP)
    assert main(command) == 1
    assert "another process is writing it; wait until" in capsys.readouterr().err
    kill(process.pid, signal.SIGKILL)
    process.wait()
    with next(tmp_path.glob("*/turns.jsonl")).open("ab") as rows:
        rows.write(b'{"torn": ')
    assert main(command) == 0
    printed = capsys.readouterr().out
    table = printed.partition("## Conditions")[0]
    cells = [line.split("|")[3].strip() for line in table.splitlines() if line.startswith("|")]
    assert cells[2:] == ["base model", "0", "1", "5", "10", "50", "100"]
    assert (tmp_path / "copied-tokens.md").read_text() == printed
    assert str(tmp_path) not in printed, "commands are fit to be shared"
    before = num_lines(tmp_path)
    # With the torn line; a kill may come between an answer's rows and lm-eval's cache.
    assert 24 <= before - 1 <= 30, "no answer but that twice, whoever was killed"
    assert main(command) == 0
    assert capsys.readouterr().out == printed
    assert num_lines(tmp_path) == before, "nothing was run again"
    [folder] = tmp_path.glob("*-mt_redundant-*")
    assert read_recorded(folder).cut_short == {}
    assert main([*command, "--batch-size", "2"]) == 1
    assert "has a run of another command" in capsys.readouterr().err


def answers(out: Path) -> dict[Any, Any]:
    """What was answered and drafted, by how it was drafted, task, document and turn.

    A kill between an answer's rows and lm-eval's cache has it made twice, and equal.
    """
    by_place: dict[Any, Any] = {}
    for folder in (path.parent for path in out.glob("*/manifest.json")):
        written = json.loads((folder / "manifest.json").read_text())["runs"]
        drafting = {run["run_id"]: json.dumps(run["spec"]["drafting"]) for run in written}
        for path in folder.glob("turns*.jsonl"):
            for row in records.read(path, []):
                place = (folder.name, drafting[row.run_id], row.task, row.doc_id, row.turn)
                baseline = row.baseline.token_ids if row.baseline else None
                made = row.token_ids, row.attempts, baseline
                assert by_place.setdefault(place, made) == made
    return by_place


def untimed(table: str) -> list[str]:
    """The lines of a table without what times decide."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [re.sub(r" *\d+\.\d+(?!\d*%)|[-: ]{2,}", " ", line) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_every_table_of_a_real_model_although_it_was_killed(
    real_model, data_dir, table, tmp_path, capsys
):
    short = ("--limit", "4", "--gen-kwargs", "max_gen_toks=48", "--model-args", "dtype=bfloat16")
    assert main(words(table, real_model, tmp_path / "whole", *short)) == 0
    undisturbed, whole = capsys.readouterr().out, answers(tmp_path / "whole")
    assert undisturbed.startswith(f"# {TABLES[table].title}\n")
    for name, kill in (("parent", os.kill), ("both", os.killpg)):
        out = tmp_path / name
        command = words(table, real_model, out, *short)
        process = subprocess.Popen([BIN / "copyspec-eval", *command], start_new_session=True)
        while num_lines(out) < len(whole) // 2:
            assert process.poll() is None
            time.sleep(0.02)
        kill(process.pid, signal.SIGKILL)
        process.wait()
        assert main(command) == 0
        assert answers(out) == whole
        assert untimed(capsys.readouterr().out) == untimed(undisturbed)
