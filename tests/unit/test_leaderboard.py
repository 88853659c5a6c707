"""Runs side by side: what is put together, what is not, and which notes say so."""

import io
import json
from dataclasses import replace
from typing import Any

import pandas
import pytest
from recorded_runs import board, manifest, turn, turns, write_run
from run_folders import sample, write_log
from sample_rows import SPEC, with_counts

from copyspec_eval.cli import main
from copyspec_eval.reports.leaderboard import Leaderboard
from copyspec_eval.reports.leaderboard_forms import FORMS, csv_files
from copyspec_eval.reports.turns import read_turns


def names(actual: Leaderboard) -> list[tuple[str, ...]]:
    return list(actual.lines[["model", "task", "drafter"]].itertuples(index=False, name=None))


def test_a_line_per_model_task_and_drafter(tmp_path):
    rows = [*turns("a"), *turns("a", drafter="suffix"), *turns("a", task="other")]
    actual = board(write_run(tmp_path, rows, manifest("a")))
    assert names(actual) == [
        ("M", "mt_bench", "copyspec"),
        ("M", "mt_bench", "suffix"),
        ("M", "other", "copyspec"),
    ]
    assert actual.lines["turns"].to_list() == [8, 8, 8]
    assert actual.notes == []


def test_runs_of_equal_settings_are_repetitions(tmp_path):
    """Two runs of one spec and one with another seed: mean, spread and n; and a line apart."""
    speeds = {"a": 2.0, "b": 1.0, "c": 1.0}
    folders = []
    for run_id, seconds in speeds.items():
        rows = [with_counts(row, seconds=seconds) for row in turns(run_id)]
        seed = {"evaluation": SPEC.evaluation | {"torch_random_seed": 7}} if run_id == "c" else {}
        folders.append(write_run(tmp_path / run_id, rows, manifest(run_id, **seed)))
    actual = board(*folders)
    assert [drafter for _, _, drafter in names(actual)] == [
        "copyspec, torch_random_seed=1234",
        "copyspec, torch_random_seed=7",
    ]
    first, other = (line for _, line in actual.lines.iterrows())
    assert (first["turns"], first["runs"], other["turns"], other["runs"]) == (8, 2, 8, 1)
    assert first["tokens_per_second"] == (10 / 2 + 10 / 1) / 2
    assert first["tokens_per_second_spread"] == pytest.approx(((10 - 7.5) ** 2 * 2) ** 0.5)
    assert "evaluation.torch_random_seed (1234 / 7)" in actual.notes[0]
    markdown = FORMS["md"](actual)
    assert "7.5 ±3.536" in markdown
    table = pandas.read_csv(io.StringIO(FORMS["csv"](actual)))
    assert table["runs"].to_list() == [2, 1]
    assert table["tokens_per_second_spread"].notna().to_list() == [True, False]
    assert len(actual.turns) == 24, "nothing is dropped"


def test_scores_of_repetitions_have_a_mean_and_a_spread(tmp_path):
    folders = []
    for run_id, accuracy in (("a", 0.5), ("b", 1.0)):
        folder = write_run(tmp_path / run_id, turns(run_id, docs=1), manifest(run_id))
        write_log(folder, [sample(0, ["Q"], [["A"]], acc=accuracy)], task="mt_bench")
        folders.append(folder)
    actual = board(*folders)
    assert actual.lines["score_acc"].to_list() == [0.75]
    assert actual.lines["score_acc_spread"].to_list() == [pytest.approx(0.125**0.5)]
    assert "| acc 0.75 ±0.354 |" in FORMS["md"](actual)


def test_runs_of_one_folder_are_repetitions_and_its_second_name_is_none(tmp_path):
    rows = [*turns("a"), *turns("b")]
    folder = write_run(tmp_path, rows, manifest("a"), manifest("b"))
    for actual in (board(folder), board(folder, folder)):
        assert actual.lines[["runs", "turns"]].to_numpy().tolist() == [[2, 8]]
        assert len(actual.turns) == 16


def test_a_run_that_was_killed_and_continued_is_one(tmp_path):
    rows = turns("a")
    later = [replace(row, run_id="b") for row in rows[5:]]
    runs = manifest("a"), manifest("b")
    actual = board(write_run(tmp_path, rows[:5] + later, *runs, cut_short={"a"}))
    assert actual.lines[["runs", "turns"]].to_numpy().tolist() == [[1, 8]]
    assert actual.notes == []


def test_an_answer_that_a_kill_made_twice_counts_once(tmp_path):
    """A kill came between its row and lm-eval's cache; the later one is what lm-eval scored."""
    slow, rows = ([with_counts(row, seconds=s) for row in turns("a")] for s in (100.0, 1.0))
    continued = [replace(row, run_id="b") for row in rows[4:6]]
    again = [replace(row, run_id="c") for row in rows[5:]]
    runs = manifest("a"), manifest("b"), manifest("c")
    asked_twice = [*rows[:4], slow[4], continued[0], replace(slow[5], run_id="b"), *again]
    actual = board(write_run(tmp_path / "1", asked_twice, *runs, cut_short={"a", "b"}))
    assert actual.lines[["runs", "turns"]].to_numpy().tolist() == [[1, 8]]
    assert actual.lines["tokens_per_second"].to_list() == [10.0]
    assert len(actual.turns) == 8
    assert actual.notes == []
    begun_again = [*slow[:5], *(replace(row, run_id="b") for row in rows)]
    actual = board(write_run(tmp_path / "2", begun_again, *runs[:2], cut_short={"a"}))
    assert actual.lines["tokens_per_second"].to_list() == [10.0]
    assert actual.notes == []
    assert len(read_turns([tmp_path / "2"])) == 8


def test_runs_of_unequal_size_have_no_mean(tmp_path):
    """One answer of a run that was cut short does not weigh as much as all of another run."""
    part = write_run(tmp_path / "a", turns("a")[:1], manifest("a"), cut_short={"a"})
    rows = [with_counts(row, seconds=2.0) for row in turns("b")]
    whole = write_run(tmp_path / "b", rows, manifest("b"))
    actual = board(part, whole)
    counts = [row.counts for row in (*turns("a")[:1], *rows)]
    pooled = sum(c.num_tokens or 0 for c in counts) / sum(c.seconds or 0 for c in counts)
    assert actual.lines["tokens_per_second"].to_list() == [pytest.approx(pooled)]
    assert actual.lines["runs"].to_list() == [2]
    assert "tokens_per_second_spread" not in actual.lines
    assert "its 2 runs have 1, 8 answers; figures are over all of them" in actual.notes[1]


def test_runs_whose_settings_are_unknown_are_never_put_together(tmp_path):
    actual = board(*(write_run(tmp_path / run_id, turns(run_id)) for run_id in "ab"))
    assert names(actual) == [("unknown", "mt_bench", "copyspec")] * 2
    assert [note for note in actual.notes if "no manifest of" in note] == actual.notes[:2]


def test_the_same_bytes_each_time_and_in_all_forms(tmp_path):
    folder = write_run(tmp_path / "run", turns("a"), manifest("a"))
    for form in FORMS.values():
        assert form(board(folder)) == form(board(folder))
    (line,) = json.loads(FORMS["json"](board(folder)))["lines"]
    assert line["by_turn"]["1"]["turns"] == 4
    assert line["by_turn"]["2"]["by_category"]["math"]["turns"] == 2
    markdown = FORMS["md"](board(folder))
    assert "## mt_bench by category" in markdown
    assert "lm_eval --model copyspec" in markdown


def test_pandas_reads_the_files_with_the_right_types(tmp_path):
    rows = [*turns("a"), *turns("a", drafter="suffix")]
    actual = board(write_run(tmp_path, rows, manifest("a")))
    files = {name: pandas.read_csv(io.StringIO(text)) for name, text in csv_files(actual).items()}
    lines = files["leaderboard.csv"]
    assert lines.groupby("drafter")["speedup"].mean().to_dict() == {
        row["drafter"]: row["speedup"] for _, row in actual.lines.iterrows()
    }
    for name in ("speedup", "turns", "runs", "spec.batch_size", "spec.drafting.gamma"):
        assert pandas.api.types.is_numeric_dtype(lines[name]), name
    assert lines["spec.drafting.exact"].dtype == bool
    by_turn = files["leaderboard_by_turn.csv"]
    assert by_turn["turn"].to_list() == [1, 2, 1, 2]
    by_category = files["leaderboard_by_category.csv"]
    assert by_category["category"].to_list() == ["math", "writing"] * 4
    assert set(by_turn.columns) | {"category"} == set(by_category.columns)


@pytest.mark.parametrize("model", ["007", "1e5", "nan", "None", "a|b`c`<img src=x>", "x" * 300])
def test_names_stay_as_they_are(tmp_path, model):
    actual = board(write_run(tmp_path, turns("a"), manifest("a", model=model)))
    table = pandas.read_csv(io.StringIO(FORMS["csv"](actual)), dtype=str, keep_default_na=False)
    assert table["model"].to_list() == [model]
    assert json.loads(FORMS["json"](actual))["lines"][0]["model"] == model
    row = [line for line in FORMS["md"](actual).splitlines() if line.startswith("|")][2]
    assert row.replace("\\|", "¦").split(" | ")[0].strip("| ") == (
        model.replace("|", "¦").replace("`", "\\`").replace("<", "&lt;")
    )


@pytest.mark.parametrize("model", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx"])
def test_no_cell_is_a_formula(tmp_path, model):
    rows = turns("a", category=model)
    actual = board(write_run(tmp_path, rows, manifest("a", model=model)))
    for text in csv_files(actual).values():
        table = pandas.read_csv(io.StringIO(text), dtype=str)
        assert table["model"].to_list() == [f"'{model}"] * len(table)
    negative = replace(actual, lines=actual.lines.assign(score_x=-10.0))
    table = pandas.read_csv(io.StringIO(FORMS["csv"](negative)))
    assert table["score_x"].to_list() == [-10.0], "a number stays a number"


def test_turns_stand_in_their_order(tmp_path):
    rows = [turn("a", 0, number) for number in (2, 10, 1)]
    markdown = FORMS["md"](board(write_run(tmp_path, rows, manifest("a"))))
    header = next(row for row in markdown.splitlines() if row.startswith("|"))
    places = [header.index(f"turn {number} ") for number in (1, 2, 10)]
    assert places == sorted(places)


def test_scores_of_the_logs_stand_in_the_line(tmp_path):
    write_run(tmp_path, turns("a", docs=1), manifest("a"))
    rows = [sample(0, ["Q", "R"], [["A"], ["B"]], exact_turn1=1.0, acc=0.5, speedup_turn1=3.0)]
    write_log(tmp_path, rows, task="mt_bench")
    [line] = json.loads(FORMS["json"](board(tmp_path)))["lines"]
    assert {n: v for n, v in line.items() if n.startswith("score_")} == {
        "score_acc": 0.5,
        "score_exact_turn1": 1.0,
    }


@pytest.mark.parametrize("owner", ["a", "b", None])
def test_scores_belong_to_the_run_that_their_file_names(tmp_path, owner):
    """Without a name, to the latest run, by its id and not by the order of lines."""
    rows = [*turns("b", docs=1, drafter="suffix"), *turns("a", docs=1)]
    write_run(tmp_path, rows, manifest("a"), manifest("b"))
    log = write_log(tmp_path, [sample(0, ["Q"], [["A"]], acc=0.5)], task="mt_bench")
    [results] = log.parent.glob("results_*.json")
    written = json.loads(results.read_text())
    written["config"]["copyspec"] = {"run_id": owner} if owner else {}
    results.write_text(json.dumps(written))
    actual = board(tmp_path)
    scores = dict(zip(actual.lines["drafter"], actual.lines["score_acc"], strict=True))
    scored = {drafter for drafter, score in scores.items() if score == 0.5}
    assert scored == {"copyspec" if owner == "a" else "suffix"}


def test_scores_of_several_filters_keep_their_names(tmp_path):
    write_run(tmp_path, turns("a", docs=1), manifest("a"))
    write_log(tmp_path, [sample(0, ["Q"], [["A"]], filter="strict", acc=0.5)], task="mt_bench")
    assert board(tmp_path).lines["score_acc (strict)"].to_list() == [0.5]


def test_a_broken_results_file_is_an_error(tmp_path, capsys):
    write_run(tmp_path, turns("a", docs=1), manifest("a"))
    (tmp_path / "results_1.json").write_text("[]")
    assert main(["report", str(tmp_path)]) == 1
    assert "results_1.json: not lm-eval's results" in capsys.readouterr().err


def test_settings_that_differ_are_in_the_label(tmp_path):
    """Two lengths of a match, and one backend with and without a setting of its requests."""
    runs = []
    for gamma in (3, 5):
        drafting = SPEC.drafting | {"gamma": gamma}
        run = manifest(f"gamma{gamma}", drafting=drafting)
        runs.append(write_run(tmp_path / str(gamma), turns(f"gamma{gamma}"), run))
    stock: dict[str, Any] = {"drafter": None, "backend": "hf", "baseline": None}
    for name, gen_kwargs in (("hf", {}), ("lookup", {"prompt_lookup_num_tokens": 10})):
        evaluation = SPEC.evaluation | {"gen_kwargs": gen_kwargs}
        run = manifest(name, backend="hf", drafting={}, evaluation=evaluation)
        runs.append(write_run(tmp_path / name, turns(name, **stock), run))
    actual = board(*runs)
    assert sorted(drafter for _, _, drafter in names(actual)) == [
        "copyspec, gamma=3",
        "copyspec, gamma=5",
        "hf",
        "hf, prompt_lookup_num_tokens=10",
    ]
    assert "differ in drafting.gamma (3 / 5)" in actual.notes[0]
    assert "evaluation.gen_kwargs.prompt_lookup_num_tokens (" in actual.notes[1]


def test_conditions_say_what_all_share_and_what_sets_apart(tmp_path):
    one = write_run(tmp_path / "one", turns("a"), manifest("a"))
    inexact = SPEC.drafting | {"exact": False}
    two = write_run(tmp_path / "two", turns("b"), manifest("b", drafting=inexact))
    markdown = FORMS["md"](board(one, two))
    shared = next(line for line in markdown.splitlines() if line.startswith("All: "))
    assert "dtype=bfloat16" in shared
    assert "exact" not in shared
    numbered = [line for line in markdown.splitlines() if line.startswith(("1. ", "2. "))]
    assert {line[3:] for line in numbered} == {"drafting.exact=True", "drafting.exact=False"}


def test_what_exact_mode_gave_is_noted_once(tmp_path):
    steps = SPEC.drafting | {"steps": "fixed width"}
    one = write_run(tmp_path / "one", turns("a"), manifest("a", drafting=steps))
    two = write_run(tmp_path / "two", turns("b"), manifest("b", drafting=steps))
    inexact = SPEC.drafting | {"steps": "any", "exact": False}
    three = write_run(tmp_path / "three", turns("c"), manifest("c", drafting=inexact))
    [note] = [note for note in board(one, two, three).notes if "exact mode" in note]
    assert "exact mode gives the same bits for every drafter" in note


def test_what_is_incomplete_is_noted(tmp_path):
    cut = write_run(tmp_path / "cut", turns("a"), manifest("a"))
    whole = (cut / "turns.jsonl").read_text()
    (cut / "turns.jsonl").write_text(whole + whole[:80])
    empty = write_run(tmp_path / "empty", [], manifest("b"))
    (empty / "turns.jsonl").touch()
    unstarted = write_run(tmp_path / "unstarted", [], manifest("c"))
    lonely = write_run(tmp_path / "lonely", turns("d"))
    actual = board(cut, empty, unstarted, lonely)
    assert actual.lines["turns"].to_list() == [8, 8]
    notes = "\n".join(actual.notes)
    parts = ["unreadable rows left out: 1, on line 9 (", "nothing was answered"]
    for part in [*parts, "so there are no answers", "no manifest of d"]:
        assert part in notes


def test_runs_below_a_folder_are_found(tmp_path, capsys, monkeypatch):
    write_run(tmp_path / "runs" / "one", turns("a"), manifest("a"))
    write_run(tmp_path / "runs" / "deep" / "two", turns("b"), manifest("b", threads=4))
    (tmp_path / "runs" / "notes.txt").write_text("no run")
    monkeypatch.chdir(tmp_path)
    assert main(["report", "--format", "csv"]) == 0
    below = capsys.readouterr().out
    assert main(["report", "runs/deep/two", "runs/one", "--format", "csv"]) == 0
    assert capsys.readouterr().out == below
    assert below.count("\n") == 3
    (tmp_path / "empty").mkdir()
    assert main(["report", "empty"]) == 1
    assert "empty: no run of copyspec here or below" in capsys.readouterr().err
    assert main(["report", "nowhere", "--out", "out"]) == 1
    assert "no such folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_has_no_answers_fails(tmp_path, capsys):
    (tmp_path / "turns.jsonl").write_text("junk")
    assert main(["report", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert "unreadable rows left out: 1" in shown.out
    assert "no answers to report" in shown.err


def test_loops_are_named(tmp_path):
    rows = [with_counts(row, num_tokens=10, num_looped_tokens=3) for row in turns("a")]
    notes = "\n".join(board(write_run(tmp_path, rows, manifest("a"))).notes)
    assert "30% of its tokens are looped and nearly free to copy" in notes


@pytest.mark.parametrize("form", ["md", "csv", "json"])
def test_each_form_is_printed(tmp_path, form, capsys):
    folder = write_run(tmp_path / "run", turns("a"), manifest("a"))
    assert main(["report", str(folder), "--format", form]) == 0
    assert capsys.readouterr().out == FORMS[form](board(folder))


def test_files_are_written(tmp_path, capsys):
    folder = write_run(tmp_path / "run", turns("a"), manifest("a"))
    assert main(["report", str(folder), "--out", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} - {".lock"} == {
        "LEADERBOARD.md",
        "leaderboard.csv",
        "leaderboard_by_turn.csv",
        "leaderboard_by_category.csv",
        "leaderboard.json",
        "report.html",
    }
    assert "report.html" in capsys.readouterr().err


def test_nothing_answered_is_a_report_too(tmp_path):
    folder = write_run(tmp_path, [], manifest("a"))
    assert main(["report", str(folder), "--out", str(tmp_path / "out")]) == 1
    assert "Nothing was answered." in (tmp_path / "out" / "LEADERBOARD.md").read_text()


def test_a_frame_of_turns_has_every_setting(tmp_path):
    one = write_run(tmp_path / "one", turns("a"), manifest("a"))
    two = write_run(tmp_path / "two", turns("b"), manifest("b", threads=4))
    frame = read_turns([one, two])
    assert len(frame) == 16
    assert frame.groupby("spec.threads")["num_tokens"].sum().to_dict() == {2: 80.0, 4: 80.0}
    assert frame["identical"].mean() == 1.0


def test_turns_are_exported_with_their_types(tmp_path):
    """Two runs in one folder whose settings are of different types, lists and objects."""
    arguments = {"max_length": "long", "peft": ["a", {"b": 1}]}
    runs = [manifest("a"), manifest("b", model_args=arguments)]
    folder = write_run(tmp_path / "run", [*turns("a"), *turns("b")], *runs)
    assert main(["export", "turns", str(folder), "--out", str(tmp_path / "out")]) == 0
    frame = pandas.read_parquet(tmp_path / "out" / "turns.parquet")
    assert frame.groupby("run_id")["num_tokens"].sum().to_dict() == {"a": 80.0, "b": 80.0}
    assert set(frame["spec.model_args.max_length"]) == {"2048", "long"}
    assert set(frame["spec.threads"]) == {2}
    assert pandas.api.types.is_integer_dtype(frame["spec.threads"])


def test_report_and_compare_read_the_rest_of_a_torn_file(tmp_path, capsys):
    """A row without its beginning, and a last one without its end, as kills leave them."""
    whole = write_run(tmp_path / "whole", turns("a"), manifest("a"))
    torn = write_run(tmp_path / "torn", turns("a"), manifest("a"))
    lines = (torn / "turns.jsonl").read_bytes().split(b"\n")
    lines[2] = lines[2][40:]
    (torn / "turns.jsonl").write_bytes(b"\n".join(lines)[:-300])
    note = f"note: {torn}/turns.jsonl: unreadable rows left out: 2, on line 3, 8 ("
    assert main(["report", str(torn)]) == 0
    assert note in capsys.readouterr().out
    assert main(["compare", str(whole), str(torn)]) == 1
    printed = capsys.readouterr()
    assert note in printed.err
    assert "NOT EQUAL: 2 missing; identical: 6 of 8 answers" in printed.out
