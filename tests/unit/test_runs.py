"""A run is read as lm-eval leaves it: answers, their tokens, and scores."""

import json
from dataclasses import replace

import pytest
from run_folders import CONVERSATION, DATE, sample, sha256, write_log
from sample_rows import PAIRED_ROW, ROW

from copyspec_eval import records
from copyspec_eval.errors import DataError
from copyspec_eval.records import AnswerKey
from copyspec_eval.reports.runs import Answer, read_run


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


def test_without_results_every_answer_counts(tmp_path):
    path = write_log(tmp_path, [CONVERSATION])
    next(path.parent.glob("results_*")).unlink()
    run = read_run(tmp_path)
    assert [each.text for each in run.answers.values()] == ["yes", "padded", "no\u2028"]
    assert run.dtype is None


def test_results_beside_a_json_output_path_are_found(tmp_path):
    path = write_log(tmp_path, [CONVERSATION])
    next(path.parent.glob("results_*")).rename(path.parent / f"mine_{DATE}.json")
    assert read_run(path.parent).dtype == "torch.bfloat16"


def test_each_filter_has_its_scores_and_only_numbers_count(tmp_path):
    odd = {"pair": [1, 2.0], "none": None, "word": "x", "nan": float("nan")}
    rows = [sample(0, ["Q"], [["x"]], name, em=em, **odd) for name, em in (("a", 0.0), ("b", 1))]
    write_log(tmp_path, rows)
    run = read_run(tmp_path)
    assert len(run.answers) == 1
    assert run.scores == {"the_task": {"em,a": {0: 0.0}, "em,b": {0: 1.0}}}


def test_a_log_likelihood_has_scores_only(tmp_path):
    row = sample(0, [], [], acc=1.0)
    row["arguments"] = {"gen_args_0": {"arg_0": "Q", "arg_1": "A"}, "gen_args_1": {"arg_0": "Q"}}
    row["resps"] = [[["-1.5", "False"]], [["-2.5"]]]
    write_log(tmp_path, [row])
    run = read_run(tmp_path)
    assert (run.answers, run.scores) == ({}, {"the_task": {"acc,none": {0: 1.0}}})


def test_tokens_are_those_of_the_same_prompt_and_text(tmp_path):
    write_log(tmp_path, [CONVERSATION])
    row = replace(ROW, task="the_task", doc_id=0, text="yes", prompt_sha256=sha256("Q"))
    for other in (
        replace(row, task="other"),
        replace(row, turn=2),
        replace(row, prompt_sha256=sha256("P")),
        replace(row, text="no\u2028"),
    ):
        records.append(tmp_path / "turns.jsonl", other)
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


def test_rows_that_cannot_be_read_are_noted(tmp_path):
    write_log(tmp_path, [CONVERSATION])
    assert read_run(tmp_path).notes == ()
    file = tmp_path / "turns.jsonl"
    records.append(file, replace(ROW, schema_version=4))
    records.append(file, replace(ROW, task="the_task", text="yes", prompt_sha256=sha256("Q")))
    run = read_run(tmp_path)
    assert run.notes == (f"{file}: unreadable rows left out: 1, on line 1 (schema 4, not 5)",)
    assert next(iter(run.answers.values())).token_ids == ROW.token_ids


@pytest.mark.parametrize(
    ("settings", "sampled"),
    [
        ({}, False),
        ({"do_sample": True}, True),
        ({"do_sample": False, "temperature": 1.0}, False),
        ({"temperature": 0.7}, True),
        ({"temperature": 0}, False),
    ],
)
def test_sampling_shows_in_the_settings(settings, sampled):
    assert Answer("t", 0, 1, 0, "Q", sha256("Q"), "A", None, settings).sampled is sampled


def test_what_is_no_run_is_refused_in_one_line(tmp_path):
    with pytest.raises(DataError, match=r"nowhere: no such folder; give the one that lm_eval"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"run lm_eval with --output_path .* --log_samples"):
        read_run(tmp_path)
    path = write_log(tmp_path, [CONVERSATION, {"doc_id": 0}])
    with pytest.raises(DataError, match=rf"{path.name}:2: not a sample of lm-eval \(KeyError"):
        read_run(tmp_path)
    path.write_text(json.dumps(CONVERSATION) + '\n{"doc_id": ')
    with pytest.raises(DataError, match=rf"{path.name}:2: not JSON"):
        read_run(tmp_path)
    write_log(tmp_path, [CONVERSATION])
    (path.parent / f"results_{DATE}.json").write_text("{")
    with pytest.raises(DataError, match=rf"results_{DATE}.json: not a results file"):
        read_run(tmp_path)
