"""`copyspec-eval report`: one screen of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_folders import sample, write_log
from sample_rows import PAIRED_ROW, ROW

from copyspec_eval import records
from copyspec_eval.cli import main
from copyspec_eval.records import TurnRecord


def write_rows(folder: Path, *rows: TurnRecord) -> None:
    for row in rows:
        records.append(folder / "turns.jsonl", row)


def screen(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    assert main(["report", str(folder)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [cells[0], *cells[2:]]


def test_scores_and_speed_stand_with_their_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores: dict[str, Any] = {
        "exact_turn1": 1.0,
        "exact_turn2": 0.0,
        "acc": 0.5,
        "answered_turn1": 1.0,
    }
    scores |= {"speedup_turn1": 2.0}
    rows = [sample(3, ["Q", "R"], [["A"], ["B"]], **scores)]
    write_log(tmp_path, rows, task="mt_bench")
    write_rows(tmp_path, PAIRED_ROW, replace(PAIRED_ROW, turn=2))
    headers, first, second = screen(tmp_path, capsys)
    assert dict(zip(headers, first, strict=True)) == {
        "task": "mt_bench",
        "turn": "1",
        "drafter": "copyspec",
        "answers": "1",
        "score": "exact 1",
        "tok/s": "2",
        "plain tok/s": "1",
        "speed-up": "2.00",
        "median (95%)": "2.00",
        "copied": "50%",
        "identical": "0%",
    }
    assert dict(zip(headers, second, strict=True))["score"] == "exact 0, acc 0.5"


def test_a_run_that_is_not_paired_has_fewer_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path, ROW)
    headers, *rows = screen(tmp_path, capsys)
    assert headers == ["task", "turn", "drafter", "answers", "tok/s", "copied"]
    assert rows == [["mt_bench", "1", "copyspec", "1", "2", "50%"]]


def test_what_was_drafted_from_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    several = replace(ROW, drafter="suffix", store=True, tree=True)
    write_rows(tmp_path, several, replace(ROW, turn=2, draft_model="small"))
    _, first, second = screen(tmp_path, capsys)
    assert (first[2], second[2]) == ("copyspec + draft model", "suffix + store + tree")


def test_the_last_answer_of_a_turn_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path, ROW, replace(ROW, run_id="later", seconds=1.0, doc_id=3))
    _, row = screen(tmp_path, capsys)
    assert row[3:5] == ["1", "10"]


def test_a_run_without_records_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path, [sample(3, ["Q"], [["A"]], acc=1.0)])
    assert main(["report", str(tmp_path)]) == 1
    assert "no turns*.jsonl" in capsys.readouterr().err


def test_the_embedded_models_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tiny"]) == 0
    assert (Path(capsys.readouterr().out.strip()) / "config.json").is_file()
