"""Runs side by side: what is put together, what is not, and what is said of it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import manifest, turn, write_run
from run_folders import sample, write_log

from copyspec_eval.cli import main
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.leaderboard import Leaderboard, leaderboard
from copyspec_eval.reports.leaderboard_forms import RENDERERS
from copyspec_eval.reports.recorded import read_recorded


def board(*folders: Path) -> Leaderboard:
    return leaderboard([read_recorded(folder) for folder in folders])


def turns(run_id: str, docs: int = 4, **changes: Any) -> list[TurnRecord]:
    return [turn(run_id, doc, number, **changes) for doc in range(docs) for number in (1, 2)]


def test_a_line_per_model_task_and_drafter(tmp_path: Path) -> None:
    rows = [*turns("a"), *turns("a", drafter="suffix"), *turns("a", task="other")]
    found = board(write_run(tmp_path, rows, manifest("a")))
    assert [(line.model, line.task, line.drafter) for line in found.lines] == [
        ("M", "mt_bench", "copyspec"),
        ("M", "mt_bench", "suffix"),
        ("M", "other", "copyspec"),
    ]
    assert {line.total["turns"] for line in found.lines} == {8}
    assert found.notes == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hardware": {"threads": 8}}, "hardware (P, 2 threads / P, 8 threads)"),
        ({"config": {"dtype": "torch.float32"}}, "dtype (bfloat16 / float32)"),
        ({"config": {"width": 32}}, "width (16 / 32)"),
        ({"versions": {"torch": "2.14"}}, "versions ("),
    ],
)
def test_other_conditions_are_kept_apart_and_said(
    tmp_path: Path, change: dict[str, dict[str, object]], said: str
) -> None:
    one = write_run(tmp_path / "one", turns("a"), manifest("a"))
    two = write_run(tmp_path / "two", turns("b"), manifest("b", **change))
    found = board(one, two)
    assert len(found.lines) == 2
    [note] = found.notes
    assert note.startswith("M, mt_bench, copyspec: not put together, for they differ in ")
    assert said in note


def test_batch_and_store_are_conditions_too(tmp_path: Path) -> None:
    rows = [*turns("a"), *turns("b", batch_size=4), *turns("c", store=True)]
    runs = [write_run(tmp_path / r, [x for x in rows if x.run_id == r], manifest(r)) for r in "abc"]
    found = board(*runs)
    assert [line.drafter for line in found.lines] == ["copyspec", "copyspec", "copyspec + store"]
    assert len(found.notes) == 1
    assert "batch_size (1 / 4)" in found.notes[0]


def test_of_equal_conditions_the_latest_answer_counts(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", turns("a"), manifest("a"))
    two = write_run(tmp_path / "two", turns("b", docs=2, seconds=9.0), manifest("b"))
    [line] = board(two, one).lines
    assert line.total["turns"] == 8
    assert [row.seconds == 9.0 for row in line.rows].count(True) == 4
    assert len(line.commands) == 2


def test_the_same_bytes_each_time_and_from_the_records_alone(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", turns("a"), manifest("a"))
    for render in RENDERERS.values():
        assert render(board(folder)) == render(board(folder))
    (line,) = json.loads(RENDERERS["json"](board(folder)))["lines"]
    assert line["by_turn"]["turn 1"]["by_category"].keys() == {"math", "writing"}
    parts = list(csv.DictReader(io.StringIO(RENDERERS["csv"](board(folder)))))
    assert [(part["turn"], part["category"]) for part in parts] == [
        ("all", "all"),
        *((number, name) for number in "12" for name in ("all", "math", "writing")),
    ]
    assert float(parts[0]["speedup"]) == line["total"]["speedup"]
    markdown = RENDERERS["md"](board(folder))
    assert "## mt_bench by category" in markdown
    assert "lm_eval --model copyspec" in markdown


def test_scores_of_the_logs_stand_in_the_line(tmp_path: Path) -> None:
    write_run(tmp_path, turns("a", docs=1), manifest("a"))
    rows = [sample(0, ["Q", "R"], [["A"], ["B"]], exact_turn1=1.0, acc=0.5, speedup_turn1=3.0)]
    write_log(tmp_path, rows, task="mt_bench")
    [line] = board(tmp_path).lines
    assert line.scores == {"exact_turn1": 1.0, "acc": 0.5}


def test_turns_stand_in_their_order_and_names_break_no_table(tmp_path: Path) -> None:
    rows = [turn("a", 0, number, task="a|b") for number in (2, 10, 1)]
    markdown = RENDERERS["md"](board(write_run(tmp_path, rows, manifest("a"))))
    header, rule, line = [row for row in markdown.splitlines() if row.startswith("|")][:3]
    assert [header.index(f"turn {number}|") for number in (1, 2, 10)] == sorted(
        header.index(f"turn {number}|") for number in (1, 2, 10)
    )
    assert header.count("|") == rule.count("|") == line.replace("\\|", "").count("|")


def test_scores_belong_to_what_answered_last_in_a_folder(tmp_path: Path) -> None:
    rows = [*turns("a", docs=1), *turns("b", docs=1, drafter="suffix")]
    write_run(tmp_path, rows, manifest("a"), manifest("b"))
    write_log(tmp_path, [sample(0, ["Q"], [["A"]], acc=0.5)], task="mt_bench")
    found = board(tmp_path)
    assert [(line.drafter, line.scores) for line in found.lines] == [
        ("copyspec", {}),
        ("suffix", {"acc": 0.5}),
    ]
    assert "the scores of mt_bench there are those of suffix" in found.notes[0]


def test_scores_of_several_filters_keep_their_names(tmp_path: Path) -> None:
    write_run(tmp_path, turns("a", docs=1), manifest("a"))
    write_log(tmp_path, [sample(0, ["Q"], [["A"]], filter="strict", acc=0.5)], task="mt_bench")
    [line] = board(tmp_path).lines
    assert line.scores == {"acc (strict)": 0.5}


def test_a_broken_results_file_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, turns("a", docs=1), manifest("a"))
    (tmp_path / "results_1.json").write_text("[]")
    assert main(["report", str(tmp_path)]) == 1
    assert "results_1.json: not lm-eval's results" in capsys.readouterr().err


def test_settings_that_differ_are_named(tmp_path: Path) -> None:
    """Two lengths of a match, and one backend with and without a setting of its requests."""
    asked = "do_sample=False"
    runs = []
    for gamma in (3, 5):
        name = f"gamma{gamma}"
        config = {"gamma": gamma, "delta": 5, "revision": "main", "step_seconds": {"0": gamma}}
        rows = turns(name, generation=asked)
        runs.append(write_run(tmp_path / name, rows, manifest(name, config=config)))
    stock: dict[str, Any] = {"drafter": None, "backend": "hf", "baseline": None, "exact": None}
    for name, generation in (("hf", asked), ("lookup", f"{asked}, prompt_lookup_num_tokens=10")):
        rows = turns(name, generation=generation, **stock)
        runs.append(write_run(tmp_path / name, rows, manifest(name)))
    found = board(*runs)
    assert [line.drafter for line in found.lines] == [
        "copyspec, gamma=3",
        "copyspec, gamma=5",
        "hf",
        "hf, prompt_lookup_num_tokens=10",
    ]
    assert "differ in settings (gamma=3 / gamma=5)" in found.notes[0]
    assert "differ in generation (" in found.notes[1]
    assert f"requests with {asked}" in RENDERERS["md"](found)


def test_what_is_incomplete_is_said(tmp_path: Path) -> None:
    cut = write_run(tmp_path / "cut", turns("a"), manifest("a"))
    whole = (cut / "turns.jsonl").read_text()
    (cut / "turns.jsonl").write_text(whole + whole[:80])
    empty = write_run(tmp_path / "empty", [], manifest("b"))
    (empty / "turns.jsonl").touch()
    unstarted = write_run(tmp_path / "unstarted", [], manifest("c"))
    lonely = write_run(tmp_path / "lonely", turns("d"))
    old = write_run(tmp_path / "old", turns("e", task="t"), manifest("e", schema_version=0))
    found = board(cut, empty, unstarted, lonely, old)
    assert [line.total["turns"] for line in found.lines] == [8, 8, 8]
    said = "\n".join(found.notes)
    parts = ["cut off by a kill", "empty; nothing", "before its first answer", "no manifest of d"]
    for part in [*parts, "schema 0"]:
        assert part in said


def test_rows_of_the_schema_before_are_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path, turns("a", docs=1), manifest("a"))
    rows = [json.loads(line) for line in (folder / "turns.jsonl").read_text().splitlines()]
    for row in rows:
        for name in ("store", "tree", "draft_model", "num_prefill_tokens", "num_copied"):
            del row[name]
        del row["prompt"], row["segments"], row["generation"]
        row["attempts"] = [attempt[:2] for attempt in row["attempts"]]
        row["schema_version"] = 2
    (folder / "turns.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = board(folder)
    [line] = found.lines
    assert line.total["copied_share"] == 0.5
    assert line.drafter == "copyspec"
    assert "schema 2" in found.notes[0]


def test_an_unknown_folder_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["report", str(tmp_path / "nowhere"), "--out", str(out)]) == 1
    assert "no such folder" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("form", RENDERERS)
def test_each_form_is_printed(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run", turns("a"), manifest("a"))
    assert main(["report", str(folder), "--format", form]) == 0
    assert capsys.readouterr().out == RENDERERS[form](board(folder))


def test_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", turns("a"), manifest("a"))
    assert main(["report", str(folder), "--out", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "LEADERBOARD.md",
        "leaderboard.csv",
        "leaderboard.json",
        "report.html",
    }
    assert "report.html" in capsys.readouterr().err
