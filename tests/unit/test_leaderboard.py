"""Runs side by side: what is put together, what is not, which notes say so; one screen of it."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
from printed_table import printed_table
from recorded_runs import board, manifest, recorded_run, turn, turns, write_run
from run_folders import sample, write_log
from sample_rows import PAIRED_ROW, ROW, SPEC, with_counts
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from copyspec_eval.cli import main
from copyspec_eval.reports.leaderboard_forms import FORMS, csv_files, overview
from copyspec_eval.reports.turns import read_turns


def names(actual):
    return list(actual.lines[["model", "task", "drafter"]].itertuples(index=False, name=None))


def sizes(actual):
    """Runs and turns of each line."""
    return actual.lines[["runs", "turns"]].to_numpy().tolist()


def test_a_line_per_model_task_and_drafter(tmp_path):
    rows = [*turns("a"), *turns("a", drafter="suffix"), *turns("a", task="other")]
    actual = board(recorded_run(tmp_path, "a", rows))
    lines = [("mt_bench", "copyspec"), ("mt_bench", "suffix"), ("other", "copyspec")]
    assert names(actual) == [("M", *line) for line in lines]
    assert (sizes(actual), actual.notes) == ([[1, 8]] * 3, [])


def test_runs_of_equal_settings_are_repetitions_with_a_mean_and_a_spread(tmp_path):
    folders = []
    for run_id, seconds, accuracy in (("a", 2.0, 0.5), ("b", 1.0, 1.0)):
        rows = [with_counts(row, seconds=seconds) for row in turns(run_id)]
        folders.append(recorded_run(tmp_path / run_id, run_id, rows))
        write_log(folders[-1], [sample(0, ["Q"], [["A"]], acc=accuracy)], task="mt_bench")
    actual = board(*folders)
    assert (sizes(actual), len(actual.turns)) == ([[2, 8]], 16), "nothing is dropped"
    line = actual.lines.iloc[0]
    assert line["tokens_per_second"] == (10 / 2 + 10 / 1) / 2
    assert line["tokens_per_second_spread"] == pytest.approx(((10 - 7.5) ** 2 * 2) ** 0.5)
    assert (line["score_acc"], line["score_acc_spread"]) == (0.75, pytest.approx(0.125**0.5))
    assert "7.5 ±3.536" in FORMS["md"](actual)
    assert "| acc 0.75 ±0.354 |" in FORMS["md"](actual)
    assert "8 ±4" in overview(actual)


def test_runs_of_one_folder_are_repetitions_and_its_second_name_is_none(tmp_path):
    rows = [*turns("a"), *turns("b")]
    folder = write_run(tmp_path, rows, manifest("a"), manifest("b"))
    for actual in (board(folder), board(folder, folder)):
        assert (sizes(actual), len(actual.turns)) == ([[2, 8]], 16)


def test_an_answer_that_a_kill_made_twice_counts_once(tmp_path):
    """A kill came between its row and lm-eval's cache; the later one is what lm-eval scored."""
    slow, rows = ([with_counts(row, seconds=s) for row in turns("a")] for s in (100.0, 1.0))
    later, again = ([replace(row, run_id=run_id) for row in rows] for run_id in "bc")
    twice = [*rows[:4], slow[4], later[4], replace(slow[5], run_id="b"), *again[5:]]
    for killed, asked in (("ab", twice), ("a", [*slow[:5], *later])):
        runs = map(manifest, "abc"[: len(killed) + 1])
        folder = write_run(tmp_path / killed, asked, *runs, cut_short=killed)
        actual = board(folder)
        assert (sizes(actual), actual.notes) == ([[1, 8]], [])
        assert actual.lines["tokens_per_second"].to_list() == [10.0]
        assert len(actual.turns) == len(read_turns([folder])) == 8


def test_runs_of_unequal_size_have_no_mean(tmp_path):
    """One answer of a run that was cut short does not weigh as much as all of another run."""
    rows = [with_counts(row, seconds=2.0) for row in turns("b")]
    part = with_counts(turn("a", 0, 1), seconds=4.0)
    cut = write_run(tmp_path / "a", [part], manifest("a"), cut_short={"a"})
    actual = board(cut, recorded_run(tmp_path / "b", "b", rows))
    assert actual.lines["tokens_per_second"].to_list() == [pytest.approx(9 * 10 / (4 + 8 * 2))]
    assert actual.lines["runs"].to_list() == [2]
    assert "tokens_per_second_spread" not in actual.lines
    assert "its 2 runs have 1, 8 answers; figures are over all of them" in actual.notes[1]


def test_every_form_is_printed_and_written_the_same_each_time(tmp_path, capsys):
    folder = recorded_run(tmp_path / "run", "a")
    actual = board(folder)
    for form, render in FORMS.items():
        assert main(["report", str(folder), "--format", form]) == 0
        assert capsys.readouterr().out == render(actual)
    assert main(["report", str(folder), "--out", str(tmp_path / "out")]) == 0
    assert "report.html" in capsys.readouterr().err
    markdown, as_json = FORMS["md"](actual), FORMS["json"](actual)
    texts = {"LEADERBOARD.md": markdown, "leaderboard.json": as_json, **csv_files(actual)}
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written - {".lock"} == {*texts, "report.html"}
    for name, text in texts.items():
        assert (tmp_path / "out" / name).read_text() == text
    [line] = json.loads(as_json)["lines"]
    assert line["by_turn"]["1"]["turns"] == 4
    assert line["by_turn"]["2"]["by_category"]["math"]["turns"] == 2
    assert "## mt_bench by category" in markdown
    assert "lm_eval --model copyspec" in markdown


def test_pandas_reads_the_files_with_the_right_types(tmp_path):
    rows = [*turns("a"), *turns("a", drafter="suffix")]
    actual = board(recorded_run(tmp_path, "a", rows))
    files = {name: pandas.read_csv(io.StringIO(text)) for name, text in csv_files(actual).items()}
    lines, by_turn, by_category = files.values()
    assert lines["speedup"].to_list() == actual.lines["speedup"].to_list()
    for name in ("speedup", "turns", "runs", "spec.batch_size", "spec.drafting.gamma"):
        assert pandas.api.types.is_numeric_dtype(lines[name]), name
    assert lines["spec.drafting.exact"].dtype == bool
    assert by_turn["turn"].to_list() == [1, 2, 1, 2]
    assert by_category["category"].to_list() == ["math", "writing"] * 4
    assert set(by_turn.columns) | {"category"} == set(by_category.columns)


@pytest.mark.parametrize(
    "model",
    [
        *("007", "1e5", "nan", "None", "a|b`c`<img src=x>", "x" * 300),
        *("=1+1", "+1", "-1", "@SUM(A1)", "\tx"),
    ],
)
def test_names_stay_as_they_are_and_no_cell_is_a_formula(tmp_path, model):
    actual = board(recorded_run(tmp_path, "a", turns("a", 1, category=model), model=model))
    actual = replace(actual, lines=actual.lines.assign(score_x=-10.0))
    cell = f"'{model}" if model[0] in "=+-@\t" else model
    for name, text in csv_files(actual).items():
        table = pandas.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
        assert table["model"].to_list() == [cell] * len(table)
        assert name != "leaderboard.csv" or table["score_x"].to_list() == ["-10.0"]
    assert json.loads(FORMS["json"](actual))["lines"][0]["model"] == model
    row = [line for line in FORMS["md"](actual).splitlines() if line.startswith("|")][2]
    escaped = model.replace("|", "¦").replace("`", "\\`").replace("<", "&lt;")
    assert row.replace("\\|", "¦").split(" | ")[0].strip("| ") == escaped.strip()


def test_turns_stand_in_their_order(tmp_path):
    rows = [turn("a", 0, number) for number in (2, 10, 1)]
    markdown = FORMS["md"](board(recorded_run(tmp_path, "a", rows)))
    header = next(row for row in markdown.splitlines() if row.startswith("|"))
    places = [header.index(f"turn {number} ") for number in (1, 2, 10)]
    assert places == sorted(places)


def test_scores_of_the_logs_stand_in_the_line_by_filter(tmp_path):
    recorded_run(tmp_path, "a", turns("a", docs=1))
    both = ["Q", "R"], [["A"], ["B"]]
    rows = [sample(0, *both, exact_turn1=1.0, acc=0.5, speedup_turn1=3.0)]
    write_log(tmp_path, [*rows, sample(0, ["Q"], [["A"]], "strict", acc=0.25)], task="mt_bench")
    [line] = json.loads(FORMS["json"](board(tmp_path)))["lines"]
    scores = {"score_acc": 0.5, "score_acc (strict)": 0.25, "score_exact_turn1": 1.0}
    assert {n: v for n, v in line.items() if n.startswith("score_")} == scores


@pytest.mark.parametrize("owner", ["a", "b", ""])
def test_scores_belong_to_the_run_that_their_file_names(tmp_path, owner):
    """Without a name, to the latest run, by its id and not by the order of lines."""
    rows = [*turns("b", docs=1, drafter="suffix"), *turns("a", docs=1)]
    write_run(tmp_path, rows, manifest("a"), manifest("b"))
    write_log(tmp_path, [sample(0, ["Q"], [["A"]], acc=0.5)], task="mt_bench", run_id=owner)
    lines = board(tmp_path).lines
    scored = lines["drafter"][lines["score_acc"] == 0.5].to_list()
    assert scored == ["copyspec" if owner == "a" else "suffix"]


def test_a_broken_results_file_is_an_error(tmp_path, capsys):
    recorded_run(tmp_path, "a")
    (tmp_path / "results_1.json").write_text("[]")
    assert main(["report", str(tmp_path)]) == 1
    assert "results_1.json: not lm-eval's results" in capsys.readouterr().err


def test_settings_that_differ_are_in_the_label(tmp_path):
    """Two lengths of a match, and one backend with and without a setting of its requests."""
    runs = [
        recorded_run(tmp_path / run_id, run_id, drafting=SPEC.drafting | {"gamma": gamma})
        for run_id, gamma in (("gamma3", 3), ("gamma5", 5))
    ]
    stock: dict[str, Any] = {"drafter": None, "backend": "hf", "baseline": None}
    for run_id, gen_kwargs in (("hf", {}), ("lookup", {"prompt_lookup_num_tokens": 10})):
        spec = {"backend": "hf", "evaluation": SPEC.evaluation | {"gen_kwargs": gen_kwargs}}
        rows = turns(run_id, **stock)
        runs.append(recorded_run(tmp_path / run_id, run_id, rows, drafting={}, **spec))
    actual = board(*runs)
    labels = ["copyspec, gamma=3", "copyspec, gamma=5", "hf", "hf, prompt_lookup_num_tokens=10"]
    assert sorted(actual.lines["drafter"]) == labels
    assert "differ in drafting.gamma (3 / 5)" in actual.notes[0]
    assert "evaluation.gen_kwargs.prompt_lookup_num_tokens (" in actual.notes[1]


def test_conditions_name_what_all_share_and_what_differs(tmp_path):
    inexact = recorded_run(tmp_path / "two", "b", drafting=SPEC.drafting | {"exact": False})
    lines = FORMS["md"](board(recorded_run(tmp_path / "one", "a"), inexact)).splitlines()
    [shared] = [line for line in lines if line.startswith("All: ")]
    assert "dtype=bfloat16" in shared
    assert "exact" not in shared
    numbered = {line[3:] for line in lines if line.startswith(("1. ", "2. "))}
    assert numbered == {"drafting.exact=True", "drafting.exact=False"}


def test_what_exact_mode_gave_is_noted_once(tmp_path):
    fixed, inexact = {"steps": "fixed width"}, {"steps": "any", "exact": False}
    folders = [
        recorded_run(tmp_path / run_id, run_id, drafting=SPEC.drafting | given)
        for run_id, given in (("a", fixed), ("b", fixed), ("c", inexact))
    ]
    [note] = [note for note in board(*folders).notes if "exact mode" in note]
    assert "exact mode gives the same bits for every drafter" in note


def test_what_is_incomplete_is_noted(tmp_path):
    empty, unstarted = (recorded_run(tmp_path / run_id, run_id, []) for run_id in "ab")
    (empty / "turns.jsonl").touch()
    unknown = (write_run(tmp_path / run_id, turns(run_id)) for run_id in "cd")
    actual = board(empty, unstarted, *unknown)
    assert names(actual) == [("unknown", "mt_bench", "copyspec")] * 2, "never put together"
    notes = "\n".join(actual.notes)
    for folder in (empty, unstarted):
        assert f"{folder}: nothing was answered" in notes
    assert "no manifest of c" in notes


def test_runs_below_a_folder_are_reported(tmp_path, capsys, monkeypatch):
    recorded_run(tmp_path / "runs" / "one", "a")
    recorded_run(tmp_path / "runs" / "deep" / "two", "b", threads=4)
    (tmp_path / "runs" / "notes.txt").write_text("no run")
    monkeypatch.chdir(tmp_path)
    assert main(["report", "--format", "csv"]) == 0
    below = capsys.readouterr().out
    assert main(["report", "runs/deep/two", "runs/one", "--format", "csv"]) == 0
    assert capsys.readouterr().out == below
    assert below.count("\n") == 3
    write_log(tmp_path / "stock", [sample(3, ["Q"], [["A"]], acc=1.0)])
    for folder, message in (
        ("stock", "no run of copyspec here or below"),
        ("no", "no such folder"),
    ):
        assert main(["report", folder, "--out", "out"]) == 1
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_nothing_answered_fails_and_is_a_report_too(tmp_path, capsys):
    recorded_run(tmp_path, "a", [])
    (tmp_path / "turns.jsonl").write_text("junk")
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    shown = capsys.readouterr()
    assert "unreadable rows left out: 1" in shown.out
    assert "no answers to report" in shown.err
    assert "Nothing was answered." in (tmp_path / "out" / "LEADERBOARD.md").read_text()


def test_loops_are_named(tmp_path):
    rows = [with_counts(row, num_tokens=10, num_looped_tokens=3) for row in turns("a")]
    [note] = [each for each in board(recorded_run(tmp_path, "a", rows)).notes if "loop" in each]
    assert note.startswith("looped tokens are nearly free to copy; read speed-up (ended): ")
    assert note.endswith(" (30%)")


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
    assert frame["identical"].mean() == 1.0


def test_tensorboard_gets_a_curve_per_figure_and_the_settings(tmp_path):
    folder = write_run(tmp_path / "run", [*turns("a"), *turns("b")], manifest("a"), manifest("b"))
    for _ in range(2):
        assert main(["export", "tensorboard", str(folder), "--out", str(tmp_path / "out")]) == 0
    for run in ("a", "b"):
        events: Any = EventAccumulator(str(tmp_path / "out" / f"copyspec-{run}"))
        events.Reload()
        [row] = [row for row in turns(run) if (row.doc_id, row.turn) == (1, 2)]
        curve = events.Scalars(f"{row.task} turn 2/tokens_per_second")
        assert [point.step for point in curve] == sorted({row.doc_id for row in turns(run)})
        assert curve[1].value == pytest.approx(10 / (row.counts.seconds or 0))
        assert {"speedup", "identical"} <= set(events.Tags()["scalars"])
        assert "_hparams_/session_start_info" in events.summary_metadata


def test_report_and_compare_read_the_rest_of_a_torn_file(tmp_path, capsys):
    """A row without its beginning, and a last one without its end, as kills leave them."""
    whole, torn = (recorded_run(tmp_path / name, "a") for name in ("whole", "torn"))
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


def screen(folder, capsys, *more):
    """The rows of the table that is printed."""
    assert main(["report", str(folder), *more]) == 0
    return printed_table(capsys.readouterr().out)


def test_scores_and_speed_stand_with_their_turns(tmp_path, capsys):
    scores: dict[str, Any] = {"exact_turn1": 1.0, "exact_turn2": 0.0, "acc": 0.5}
    scores |= {"answered_turn1": 1.0, "speedup_turn1": 2.0}
    write_log(tmp_path, [sample(3, ["Q", "R"], [["A"], ["B"]], **scores)], task="mt_bench")
    recorded_run(tmp_path, "r", [PAIRED_ROW, replace(PAIRED_ROW, turn=2)])
    narrow = {"task": "mt_bench", "turn": "1", "tokens/s": "2"}
    narrow |= {"speed-up (ended)": "2.00", "identical": "0%"}
    wide = {
        "answers": "1",
        "speed-up (all)": "2.00",
        "model": "M",
        "drafter": "copyspec",
        "score": "exact 1",
        "baseline tokens/s": "1",
    }
    wide |= {"median": "2.00", "copied": "50%", "cut by length": "0%"}
    assert screen(tmp_path, capsys)[0] == narrow
    first, second = screen(tmp_path, capsys, "--wide")
    assert first == narrow | wide
    assert second["score"] == "acc 0.5, exact 0"


def test_what_is_not_measured_has_no_column(tmp_path, capsys):
    [row] = screen(recorded_run(tmp_path, "r", [ROW]), capsys)
    assert row == {"task": "mt_bench", "turn": "1", "tokens/s": "2"}


def test_the_embedded_models_folder(capsys):
    assert main(["tiny"]) == 0
    assert (Path(capsys.readouterr().out.strip()) / "config.json").is_file()
