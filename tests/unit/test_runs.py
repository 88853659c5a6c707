"""A run is read as lm-eval leaves it, shards as one run; rows survive kills and pickles."""

import json
import pickle
import re
from dataclasses import replace
from typing import Any

import pytest
from pandas import read_parquet
from recorded_runs import board, manifest, turn, write_run
from run_folders import CONVERSATION, DATE, sample, sha256, write_log
from sample_rows import PAIRED_ROW, ROW, SPEC, with_counts

from copyspec_eval import provenance, records
from copyspec_eval.cli import main
from copyspec_eval.errors import DataError, unknown_option
from copyspec_eval.records import AnswerKey, RecordedText, SpanCharacters, record_of
from copyspec_eval.reports.recorded import read_runs
from copyspec_eval.reports.runs import Answer, read_run
from copyspec_eval.types import TurnCounts


def test_a_run_is_read_from_its_log(tmp_path):
    write_log(tmp_path, [CONVERSATION, sample(2, ["P", "P R"], [["a"], ["b"]], acc=False)])
    write_log(tmp_path, [CONVERSATION], date="2025-12-31T00-00-00")
    run = read_run(tmp_path)
    keys = [AnswerKey("the_task", doc_id, turn, 0) for doc_id in (7, 2) for turn in (1, 2)]
    assert list(run.answers) == keys, "of the newest log, in its order, without the padding"
    second = run.answers[keys[1]]
    assert (second.prompt, second.text) == ("Q yes R", "no\u2028")
    assert second.prompt_sha256 == sha256("Q yes R")
    assert second.token_ids is None
    assert second.gen_kwargs == {"until": [], "do_sample": False}
    assert run.scores == {"the_task": {"acc,none": {7: 1, 2: 0}}}
    assert run.dtype == "torch.bfloat16"


def test_results_may_be_missing_or_beside_a_json_output_path(tmp_path):
    path = write_log(tmp_path, [CONVERSATION])
    [results] = path.parent.glob("results_*")
    results = results.rename(path.parent / f"mine_{DATE}.json")
    assert read_run(path.parent).dtype == "torch.bfloat16"
    results.unlink()
    run = read_run(tmp_path)
    assert [each.text for each in run.answers.values()] == ["yes", "padded", "no\u2028"]
    assert run.dtype is None


def test_each_filter_has_its_scores_and_only_numbers_count(tmp_path):
    odd = {"pair": [1, 2.0], "none": None, "word": "x", "nan": float("nan")}
    rows = [sample(0, ["Q"], [["x"]], name, em=em, **odd) for name, em in (("a", 0.0), ("b", 1))]
    write_log(tmp_path, rows)
    row = sample(0, [], [], acc=1.0) | {"resps": [[["-1.5", "False"]], [["-2.5"]]]}
    row["arguments"] = {"gen_args_0": {"arg_0": "Q", "arg_1": "A"}, "gen_args_1": {"arg_0": "Q"}}
    write_log(tmp_path, [row], task="log_likelihood")
    run = read_run(tmp_path)
    assert [key.task for key in run.answers] == ["the_task"]
    assert run.scores == {
        "the_task": {"em,a": {0: 0.0}, "em,b": {0: 1.0}},
        "log_likelihood": {"acc,none": {0: 1.0}},
    }


def test_tokens_are_those_of_the_same_prompt_and_text(tmp_path):
    write_log(tmp_path, [CONVERSATION])
    row = replace(ROW, task="the_task", doc_id=0, text="yes", prompt_sha256=sha256("Q"))
    others: list[dict[str, Any]] = [{"task": "other"}, {"turn": 2}, {"text": "no\u2028"}]
    for changes in [*others, {"prompt_sha256": sha256("P")}]:
        records.append(tmp_path / "turns.jsonl", replace(row, **changes))
    assert next(iter(read_run(tmp_path).answers.values())).token_ids is None
    records.append(records.records_file(tmp_path, rank=0), replace(row, token_ids=(1, 2)))
    paired = replace(row, baseline=PAIRED_ROW.baseline)
    records.append(records.records_file(tmp_path, rank=1), paired)
    first, second = read_run(tmp_path).answers.values()
    assert first.token_ids == paired.answer_ids != paired.token_ids, "of the last such row"
    assert second.token_ids is None


def test_records_alone_are_a_run(tmp_path):
    first = replace(ROW, doc_id=2)
    earlier = replace(first, run_id="q", text="earlier run")
    for row in (replace(ROW, doc_id=5), first, earlier, PAIRED_ROW):
        records.append(tmp_path / "turns.jsonl", row)
    run = read_run(tmp_path)
    assert [key.doc_id for key in run.answers] == [2, 3, 5], "whatever finished first"
    alone, paired, _ = run.answers.values()
    assert (alone.prompt, alone.prompt_sha256, alone.text) == (None, ROW.prompt_sha256, ROW.text)
    assert alone.token_ids == ROW.token_ids
    assert paired.token_ids == PAIRED_ROW.answer_ids != PAIRED_ROW.token_ids
    assert not alone.sampled


def test_sampling_shows_in_the_settings():
    answer = Answer(ROW.key, "Q", sha256("Q"), "A", None, {})
    sampled: list[Any] = [{"do_sample": True}, {"temperature": 0.7}]
    greedy: list[Any] = [{}, {"do_sample": False, "temperature": 1.0}, {"temperature": 0}]
    for settings in [*sampled, *greedy]:
        assert replace(answer, gen_kwargs=settings).sampled is (settings in sampled)


def test_what_is_no_run_is_refused_in_one_line(tmp_path):
    with pytest.raises(DataError, match=r"nowhere: no such folder; give the one that lm_eval"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"run lm_eval with --output_path .* --log_samples"):
        read_run(tmp_path)
    path = write_log(tmp_path, [CONVERSATION])
    row, results = json.dumps(CONVERSATION), path.with_name(f"results_{DATE}.json")
    for file, text, message in (
        (path, row + '\n{"doc_id": 0}', rf"{path.name}:2: not a sample of lm-eval \(KeyError"),
        (path, row + '\n{"doc_id": ', rf"{path.name}:2: not JSON"),
        (results, "{", rf"{results.name}: not a results file"),
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=message):
            read_run(tmp_path)


TASK = ROW.task


def log(folder, run_id, documents, task=TASK):
    """A sample log of a task of four documents, with a score of 1 for every third."""
    samples = [sample(doc, ["Q"], [["A"]], acc=float(doc % 3 == 0)) for doc in documents]
    date = f"2026-01-01T00-00-0{run_id[-1]}.000001"
    write_log(folder, samples, date=date, task=task, run_id=run_id, original=4)


def shard(folder, run_id, documents, **changes):
    evaluation = SPEC.evaluation | {"samples": {TASK: documents}}
    made = manifest(run_id, **({"evaluation": evaluation} | changes))
    rows = [turn(run_id, doc, number) for doc in documents for number in (1, 2)]
    write_run(folder, rows, made, cut_short=[run_id])
    log(folder, run_id, documents)
    return folder


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
    assert actual.notes == [f"{TASK}: acc is not a mean over documents, so shards do not give it"]


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


def rows_in(path):
    """Its rows and the notes on it."""
    notes: list[str] = []
    return records.read(path, notes), notes


def write(path, *rows):
    """Its lines."""
    for row in rows:
        records.append(path, row)
    return path.read_text().split("\n")[:-1]


def test_rows_come_back_as_they_were(tmp_path):
    path = records.records_file(tmp_path / "new" / "folder", rank=1)
    assert path.name == "turns.rank1.jsonl"
    rows = [ROW, replace(ROW, turn=2, attempts=(), spans=()), PAIRED_ROW]
    rows += [replace(ROW, counts=TurnCounts(), token_ids=None, drafter=None)]
    rows += [replace(ROW, span_characters=(SpanCharacters(0, 1, -1, -1),))]
    rows += [with_counts(replace(ROW, text="\0\r\x85\u2029\U0001f680"), seconds=1e-300)]
    assert len(write(path, *rows)) == len(rows)
    assert rows_in(path) == (rows, [])


def test_lines_that_are_no_rows_are_left_out_and_named(tmp_path):
    path = tmp_path / "turns.jsonl"
    lines = write(path, *[ROW] * 5)
    lines[1] = lines[1].replace('"schema_version":5', '"schema_version":4')
    lines[2] = "{}"
    lines[4] = lines[4][:60]
    path.write_text("\n".join(lines))
    note = f"{path}: unreadable rows left out: 3, on line 2, 3, 5 (schema 4, not 5)"
    assert rows_in(path) == ([ROW, ROW], [note])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"num_tokens":10', '"num_tokens":1.5'),
        ('"finish_reason":"eos"', '"finish_reason":"bored"'),
        ('"seconds":5.0', '"seconds":Infinity'),
        ('"num_tokens":10', '"num_tokens":-1'),
        ('"seconds":5.0', '"seconds":-0.5'),
        ('"seconds":5.0', '"seconds":1e308'),
        ('"num_forwards":5', '"num_forwards":1000000000000'),
        ('"num_accepted":5', '"num_accepted":21'),
        ('[10,3,"context"]', '[10000000,0,"context"]'),
        ('[10,3,"context"]', '[2,3,"context"]'),
        ('[10,3,"context"]', '[2,-1,"context"]'),
    ],
)
def test_values_that_no_run_has_are_left_out_and_named(tmp_path, old, new):
    path = tmp_path / "turns.jsonl"
    first, second = write(path, ROW, ROW)
    assert old in second
    path.write_text(f"{first}\n{second.replace(old, new, 1)}\n")
    rows, [note] = rows_in(path)
    assert rows == [ROW]
    reason = r"\w+ is -?[\d.e+]+\)|-?\d+ of \d+ accepted|Expected|Invalid|JSON is malformed"
    assert re.search(rf"unreadable rows left out: 1, on line 2 \(({reason})", note)


def test_a_folder_in_place_of_the_file_is_an_error(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        records.read(tmp_path, [])


def test_an_answer_is_text_with_its_record():
    answer = RecordedText("hello", ROW)
    again = pickle.loads(pickle.dumps(answer))
    assert answer == again == "hello"
    assert (record_of(again), record_of("hello")) == (ROW, None)
    assert json.dumps([answer]) == '["hello"]'
    assert type(answer)(5) == "5", "lm-eval turns a reference answer into the answer's type"


def test_unknown_names_without_a_close_one_list_them_all():
    assert str(unknown_option("thing", "xyz", ["b", "a"])) == "unknown thing 'xyz'; known: a, b"


def test_runs_of_a_process_are_in_the_order_of_their_ids():
    """Of two answers to a request, that of the later run counts."""
    ids = [provenance.new_run_id() for _ in range(12)]
    assert ids == sorted(set(ids))
