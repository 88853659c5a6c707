"""Shards of one run: which are reported as that run, and which are not."""

import json

import pytest
from pandas import read_parquet
from recorded_runs import manifest, turn, write_run
from run_folders import sample, write_log
from sample_rows import SPEC

from copyspec_eval.cli import main
from copyspec_eval.reports.leaderboard import leaderboard
from copyspec_eval.reports.recorded import read_runs

TASK = turn("r", 0, 1).task


def log(folder, run_id, documents, task=TASK):
    """A sample log of a task of four documents, with a score of 1 for every third."""
    samples = [sample(doc, ["Q"], [["A"]], acc=float(doc % 3 == 0)) for doc in documents]
    date = f"2026-01-01T00-00-0{run_id[-1]}.000001"
    write_log(folder, samples, date=date, task=task, run_id=run_id, original=4)


def shard(folder, run_id, documents, **changes):
    evaluation = {"evaluation": SPEC.evaluation | {"samples": {TASK: documents}}}
    made = manifest(run_id, **(evaluation | changes))
    rows = [turn(run_id, doc, number) for doc in documents for number in (1, 2)]
    write_run(folder, rows, made, cut_short=[run_id])
    log(folder, run_id, documents)
    return folder


def board(*folders):
    return leaderboard(read_runs(folders))


@pytest.fixture
def shards(tmp_path):
    return [shard(tmp_path / "a", "run-1", [0, 2]), shard(tmp_path / "b", "run-2", [1, 3])]


def test_a_report_of_shards_is_that_of_one_run(shards):
    actual = board(*shards)
    [line] = actual.lines.to_dict("records")
    assert (line["score_acc"], line["runs"], line["turns"]) == (0.5, 1, 8)
    assert not actual.notes
    assert actual.settings["task.samples"].tolist() == [None], "all documents of the task"


def test_documents_that_nobody_answered_are_no_whole_run(tmp_path):
    folders = [shard(tmp_path / str(number), f"run-{number}", [number]) for number in range(2)]
    assert board(*folders).settings["task.samples"].tolist() == [[0, 1]]


def test_comparing_and_exporting_read_the_shards_in_a_folder(tmp_path, capsys):
    whole, split = shard(tmp_path / "whole", "run-9", [0, 1, 2, 3]), tmp_path / "split"
    for number in range(2):
        shard(split / str(number), f"run-{number}", [number, number + 2])
    assert main(["compare", str(split), str(whole), "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert compared["counts"]["identical"] == 4
    assert [score["num_documents"] for score in compared["scores"]] == [4]
    assert main(["compare", str(split)]) == 0
    assert main(["export", "turns", str(split), "--out", str(tmp_path)]) == 0
    assert len(read_parquet(tmp_path / "turns.parquet")) == 8


def test_a_score_that_is_no_mean_is_left_out_and_named(shards):
    results = next(shards[0].glob("*/results_*.json"))
    written = json.loads(results.read_text())
    written["results"][TASK]["acc,none"] = 0.75
    results.write_text(json.dumps(written))
    actual = board(*shards)
    assert "score_acc" not in actual.lines
    assert actual.notes == [f"{TASK}: acc is no mean over documents; its shards do not give it"]


@pytest.mark.parametrize(
    ("documents", "changes"),
    [([2, 3], {}), ([1, 3], {"threads": 7}), ([1, 3], {"evaluation": SPEC.evaluation})],
    ids=["documents", "settings", "whole"],
)
def test_what_is_no_shard_is_reported_apart(tmp_path, documents, changes):
    one = shard(tmp_path / "a", "run-1", [0, 2])
    assert len(board(one, shard(tmp_path / "b", "run-2", documents, **changes)).lines) == 2


def test_a_shard_that_was_cut_short_is_reported_apart(shards):
    for results in shards[1].glob("*/results_*.json"):
        results.unlink()
    assert len(read_runs(shards)) == 2


def test_neither_order_nor_a_folder_that_is_named_twice_matters(shards):
    lines = board(*shards).lines
    for folders in (shards[::-1], [shards[0], *shards]):
        assert board(*folders).lines.equals(lines)


def test_scores_of_log_likelihoods_are_joined_too(shards):
    """They leave no rows."""
    for number, folder in enumerate(shards):
        log(folder, f"run-{number + 1}", [number], task="arc")
    [run] = read_runs(shards)
    assert {task: scores for (_, task), scores in run.scores.items()}["arc"] == {"acc": 0.5}
