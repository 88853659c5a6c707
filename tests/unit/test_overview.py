"""`copyspec-eval report`: one screen of a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import manifest, write_run
from run_folders import sample, write_log
from sample_rows import PAIRED_ROW, ROW, with_counts

from copyspec_eval.cli import main


def screen(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> list[list[str]]:
    assert main(["report", str(folder), *more]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [cells[0], *cells[2:]]


def test_scores_and_speed_stand_with_their_turns(tmp_path, capsys):
    scores: dict[str, Any] = {"exact_turn1": 1.0, "exact_turn2": 0.0, "acc": 0.5}
    scores |= {"answered_turn1": 1.0, "speedup_turn1": 2.0}
    rows = [sample(3, ["Q", "R"], [["A"], ["B"]], **scores)]
    write_log(tmp_path, rows, task="mt_bench")
    write_run(tmp_path, [PAIRED_ROW, replace(PAIRED_ROW, turn=2)], manifest("r"))
    narrow = {"task": "mt_bench", "turn": "1", "answers": "1", "tokens/s": "2"}
    narrow |= {"speed-up (ended)": "2.00", "speed-up (all)": "2.00", "identical": "0%"}
    headers, first, _ = screen(tmp_path, capsys)
    assert dict(zip(headers, first, strict=True)) == narrow
    headers, first, second = screen(tmp_path, capsys, "--wide")
    assert dict(zip(headers, first, strict=True)) == {
        "model": "M",
        "drafter": "copyspec",
        "score": "exact 1",
        "baseline tokens/s": "1",
        "median": "2.00",
        "copied": "50%",
        "cut by length": "0%",
        **narrow,
    }
    assert dict(zip(headers, second, strict=True))["score"] == "acc 0.5, exact 0"


def test_a_run_that_is_not_paired_has_fewer_columns(tmp_path, capsys):
    write_run(tmp_path, [ROW], manifest("r"))
    headers, *rows = screen(tmp_path, capsys)
    assert headers == ["task", "turn", "answers", "tokens/s"]
    assert rows == [["mt_bench", "1", "1", "2"]]


def test_a_speed_up_of_several_conversations_has_its_interval(tmp_path, capsys):
    faster = with_counts(replace(PAIRED_ROW, doc_id=4), seconds=2.5)
    write_run(tmp_path, [PAIRED_ROW, faster], manifest("r"))
    headers, row = screen(tmp_path, capsys, "--wide")
    cells = dict(zip(headers, row, strict=True))
    assert cells["speed-up (all)"] == "2.67 (2.00 to 4.00)"
    assert cells["median"] == "3.00 (2.00 to 4.00)"


def test_drafters_are_named_with_their_switches(tmp_path, capsys):
    several = replace(ROW, drafter="suffix + store + tree")
    write_run(tmp_path, [several, replace(ROW, turn=2, drafter="copyspec + draft_model=a")])
    _, first, second = screen(tmp_path, capsys)
    assert (first[2], second[2]) == ("copyspec + draft_model=a", "suffix + store + tree")


def test_repeated_runs_are_means_with_their_spread(tmp_path, capsys):
    rows = [ROW, with_counts(replace(ROW, run_id="later"), seconds=1.0)]
    write_run(tmp_path, rows, manifest("r"), manifest("later"))
    headers, row = screen(tmp_path, capsys)
    cells = dict(zip(headers, row, strict=True))
    assert (cells["answers"], cells["runs"], cells["tokens/s"]) == ("1", "2", "6 ±6")


def test_a_run_without_records_is_refused(tmp_path, capsys):
    write_log(tmp_path, [sample(3, ["Q"], [["A"]], acc=1.0)])
    assert main(["report", str(tmp_path)]) == 1
    assert "no run of copyspec here or below" in capsys.readouterr().err


def test_the_embedded_models_folder(capsys):
    assert main(["tiny"]) == 0
    assert (Path(capsys.readouterr().out.strip()) / "config.json").is_file()
