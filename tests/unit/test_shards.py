"""Shards of one run: which are reported as that run, and which are not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pandas import read_parquet
from recorded_runs import manifest, turn, write_run
from run_folders import sample, write_log
from sample_rows import SPEC, with_counts

from copyspec_eval.cli import main
from copyspec_eval.reports.leaderboard import leaderboard
from copyspec_eval.reports.recorded import read_recorded, read_runs

TASK = turn("r", 0, 1).task


def shard(
    folder: Path, run_id: str, documents: list[int], original: int = 4, **changes: Any
) -> Path:
    """A run of these documents, whose score is 1 for every third."""
    spec = manifest(run_id).spec
    evaluation = spec.evaluation | {"samples": {TASK: documents}}
    made = manifest(run_id, **({"evaluation": evaluation} | changes))
    rows = [turn(run_id, doc, number) for doc in documents for number in (1, 2)]
    write_run(folder, rows, made, cut_short=[run_id])
    samples = [sample(doc, ["Q"], [["A"]], acc=float(doc % 3 == 0)) for doc in documents]
    path = write_log(folder, samples, date=f"2026-01-01T00-00-0{run_id[-1]}.000001", task=TASK)
    results = next(path.parent.glob("results_*.json"))
    written = json.loads(results.read_text())
    written["config"]["copyspec"] = {"run_id": run_id}
    written["n-samples"] = {TASK: {"original": original, "effective": len(documents)}}
    results.write_text(json.dumps(written))
    return folder


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    return [shard(tmp_path / "a", "run-1", [0, 2]), shard(tmp_path / "b", "run-2", [1, 3])]


def test_a_report_of_shards_is_that_of_one_run(shards):
    board = leaderboard(read_runs(shards))
    assert len(board.lines) == 1
    assert board.lines["score_acc"].tolist() == [0.5]  # documents 0 and 3 of 4
    assert board.lines["runs"].tolist() == [1]
    assert board.lines["turns"].tolist() == [8]
    assert not board.notes
    assert board.settings["task.samples"].tolist() == [None], "all documents of the task"


def test_documents_that_nobody_answered_are_no_whole_run(tmp_path):
    folders = [
        shard(tmp_path / name, f"run-{number}", [number], original=4)
        for number, name in enumerate("ab")
    ]
    board = leaderboard(read_runs(folders))
    assert board.settings["task.samples"].tolist() == [[0, 1]]


def test_comparing_and_exporting_read_the_shards_in_a_folder(shards, tmp_path, capsys):
    whole = shard(tmp_path / "whole", "run-9", [0, 1, 2, 3])
    split = tmp_path / "split"
    split.mkdir()
    for folder in shards:
        folder.rename(split / folder.name)
    assert main(["compare", str(split), str(whole), "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert compared["counts"]["identical"] == 4
    assert [score["num_documents"] for score in compared["scores"]] == [4]
    assert main(["compare", str(split)]) == 0
    assert main(["export", "turns", str(split), "--out", str(tmp_path)]) == 0
    assert len(read_parquet(tmp_path / "turns.parquet")) == 8


def test_an_answer_that_a_kill_made_twice_counts_once(shards):
    [whole] = read_recorded(shards[0]).manifests.values()
    earlier = with_counts(turn("run-0", 0, 1), num_tokens=1000)
    write_run(shards[0], [earlier], replace(whole, run_id="run-0"), cut_short=["run-0"])
    assert leaderboard(read_runs(shards)).lines["turns"].tolist() == [8]


def test_a_score_that_is_no_mean_is_left_out_and_named(shards):
    results = next(shards[0].glob("*/results_*.json"))
    written = json.loads(results.read_text())
    written["results"][TASK]["acc,none"] = 0.75
    results.write_text(json.dumps(written))
    board = leaderboard(read_runs(shards))
    assert "score_acc" not in board.lines
    assert board.notes == [f"{TASK}: acc is no mean over documents; its shards do not give it"]


@pytest.mark.parametrize(
    ("documents", "changes"),
    [([2, 3], {}), ([1, 3], {"threads": 7}), ([1, 3], {"evaluation": SPEC.evaluation})],
    ids=["documents", "settings", "whole"],
)
def test_what_is_no_shard_is_reported_apart(tmp_path, documents, changes):
    one = shard(tmp_path / "a", "run-1", [0, 2])
    other = shard(tmp_path / "b", "run-2", documents, **changes)
    assert len(leaderboard(read_runs([one, other])).lines) == 2


def test_a_shard_that_was_cut_short_is_reported_apart(shards):
    for results in shards[1].glob("*/results_*.json"):
        results.unlink()
    assert len(read_runs(shards)) == 2


def test_neither_order_nor_a_folder_that_is_named_twice_matters(shards):
    orders = (shards, shards[::-1], [shards[0], *shards])
    boards = [leaderboard(read_runs(order)) for order in orders]
    assert all(board.lines.equals(boards[0].lines) for board in boards)


def test_scores_of_log_likelihoods_are_joined_too(shards):
    """They leave no rows."""
    for number, folder in enumerate(shards):
        [path] = folder.rglob("results_*.json")
        written = json.loads(path.read_text())
        samples = [sample(number, ["Q"], [["A"]], acc=float(number))]
        log = write_log(folder, samples, date=path.stem.removeprefix("results_"), task="arc")
        of_both = json.loads(path.read_text())["results"] | written["results"]
        path.write_text(json.dumps(written | {"results": of_both}))
        assert log.exists()
    [run] = read_runs(shards)
    assert {task: scores for (_, task), scores in run.scores.items()}["arc"] == {"acc": 0.5}
