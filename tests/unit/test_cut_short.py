"""A run that was cut short is reported as cut short, and no whole one is."""

import csv
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lm_eval_command import Command
from recorded_runs import manifest, turn, turns, write_run
from run_folders import sample, write_log

from copyspec_eval.cli import main
from copyspec_eval.manifest import RunManifest
from copyspec_eval.reports.recorded import read_recorded
from copyspec_eval.reports.runs import read_run


def asked(run_id: str, num_answers: int = 8, **changes: Any) -> RunManifest:
    return replace(manifest(run_id, **changes), num_answers=num_answers)


def cut_short(folder: Path) -> list[str]:
    return list(read_recorded(folder).cut_short)


def note(folder: Path, run_id: str, answers: str) -> str:
    return (
        f"{folder}/turns.jsonl: run {run_id} was cut short or is still running "
        f"(answers: {answers}; results of lm-eval: none)"
    )


def scored(folder: Path, config: dict[str, Any], *samples: dict[str, Any]) -> None:
    log = write_log(folder, [*samples], task="mt_bench")
    [path] = log.parent.glob("results_*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"config": config}))


def test_reports_and_comparisons_say_so(tmp_path, capsys):
    folder = write_run(tmp_path / "run", turns("a")[:5], asked("a"), cut_short={"a"})
    line = note(folder, "a", "5 of 8")
    for form in ("table", "md", "json"):
        assert main(["report", str(folder), "--format", form, "--out", str(tmp_path)]) == 0
        assert capsys.readouterr().out.count(line) == 1, form
    for name in ("LEADERBOARD.md", "leaderboard.json", "report.html"):
        assert "turns.jsonl: run a was cut short" in (tmp_path / name).read_text(), name
    assert main(["report", str(folder), "--format", "csv"]) == 0
    [row] = csv.DictReader(capsys.readouterr().out.splitlines())
    assert row["runs_cut_short"] == "1"
    whole = write_run(tmp_path / "whole", turns("a"), asked("a"))
    assert main(["compare", str(whole), str(folder)]) == 1
    printed = capsys.readouterr()
    assert printed.err == f"note: {line}\n"
    assert "3 missing" in printed.out


def test_compare_names_the_answers_that_it_leaves_out(tmp_path):
    """A later run into the folder of a whole one, and a task whose log a kill prevented."""
    rows = [*turns("a"), turn("a", 0, 1, task="other"), turn("b", 0, 1)]
    write_run(tmp_path, rows, asked("a"), asked("b"), cut_short={"b"})
    scored(tmp_path, {"copyspec": {"run_id": "a"}}, sample(0, ["p", "q"], [["A"], ["B"]]))
    assert read_run(tmp_path).notes == (
        f"{tmp_path}: answers to other are left out: they have no sample log",
        note(tmp_path, "b", "1 of 8") + "; its answers are left out: other runs have sample logs",
    )


def test_compare_reads_the_answers_beside_a_broken_manifest(tmp_path):
    write_run(tmp_path, turns("a"), asked("a"))
    (tmp_path / "manifest.json").write_text("[]")
    run = read_run(tmp_path)
    assert len(run.answers) == 8
    assert run.notes[0].startswith("whether the runs are whole is not known: ")


@pytest.mark.parametrize(
    ("rows", "run", "answers"),
    [(turns("a")[:5], manifest("a"), "5"), ([], asked("a"), "0 of 8")],
    ids=["number unknown", "no answer"],
)
def test_what_is_known_of_a_run_that_was_cut_short_is_said(rows, run, answers, tmp_path):
    write_run(tmp_path, rows, run, cut_short={"a"})
    assert note(tmp_path, "a", answers) in read_recorded(tmp_path).notes


def test_a_later_run_of_the_same_settings_is_cut_short_itself(tmp_path):
    """How one continues another, `test_leaderboard` has."""
    first, rest, runs = turns("a")[:4], turns("b")[4:], (asked("a"), asked("b"))
    folder = write_run(tmp_path / "later", first + rest, *runs, cut_short={"b"})
    assert cut_short(folder) == ["b"]
    both = write_run(tmp_path / "both", first + rest[1:], *runs, cut_short={"a", "b"})
    assert read_recorded(both).notes == [note(both, "b", "7 of 8")], "those of both"


@pytest.mark.parametrize("other", [{"threads": 9}, {"tasks": {"other": {}}}], ids=str)
def test_a_later_run_of_other_settings_does_not(other, tmp_path):
    rows = [*turns("a")[:4], *turns("b")[4:]]
    write_run(tmp_path, rows, asked("a"), asked("b", **other), cut_short={"a"})
    assert cut_short(tmp_path) == ["a"]


@pytest.mark.parametrize("finished", [["one", "two"], ["two"]])
def test_a_task_that_lm_evals_cache_had_as_a_whole_is_continued_too(finished, tmp_path):
    """The later run was asked nothing of it, and has it in its results all the same."""
    of_one = [turn("a", doc, 1, task="one") for doc in range(2)]
    of_two = [turn(run_id, doc, 1, task="two") for run_id, doc in [("a", 0), ("b", 0), ("b", 1)]]
    runs = asked("a", tasks={"one": {}, "two": {}}), asked("b", tasks={"two": {}})
    folder = write_run(tmp_path, of_one + of_two, *runs, cut_short={"a", "b"})
    results = {"config": {"copyspec": {"run_id": "b"}}, "results": {task: {} for task in finished}}
    (folder / "results_b.json").write_text(json.dumps(results))
    run = read_recorded(folder)
    whole = finished == ["one", "two"]
    assert (cut_short(folder), len(run.records)) == (([], 4) if whole else (["a"], 5))


@pytest.mark.parametrize(
    ("config", "whole"),
    [
        ({}, True),
        ({"model": "copyspec-timed"}, True),
        ({"model": "hf"}, False),
        ({"copyspec": {"run_id": "a"}}, True),
        ({"copyspec": {"run_id": "b"}}, True),
        ({"copyspec": {"run_id": "0"}}, False),
    ],
    ids=str,
)
def test_results_of_another_run_do_not_make_one_whole(config, whole, tmp_path):
    """Those of a later run that was served from lm-eval's cache alone do."""
    write_run(tmp_path, turns("a"), asked("a"), cut_short={"a"})
    scored(tmp_path, config, sample(0, ["Q"], [["A"]], acc=0.5))
    run = read_recorded(tmp_path)
    assert (not run.cut_short, ("a", "mt_bench") in run.scores) == (whole, whole)


def test_results_beside_a_json_output_path_are_found(tmp_path):
    write_run(tmp_path, turns("a"), asked("a"))
    (tmp_path / "results_a.json").rename(tmp_path / "mine_2026-01-01T00-00-00.000001.json")
    assert cut_short(tmp_path) == []


@pytest.mark.slow  # a killed one is reported in the tests of the command
def test_a_run_that_is_interrupted(byte_model, questions, tmp_path, capsys):
    command = Command(byte_model, questions, tmp_path / "run")
    # Where tests run in the background, their programs would ignore an interrupt.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        more = "--gen_kwargs", "max_gen_toks=1000"
        code = command.end(*more, options="drafter=none,exact=false", sent=signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert code not in (0, 1)
    [run_id] = {row.run_id for row in command.rows()}
    assert main(["report", str(command.output)]) == 0
    printed = capsys.readouterr().out
    assert f"run {run_id} was cut short or is still running (answers: " in printed
    assert " of 12; results of lm-eval: none)" in printed
