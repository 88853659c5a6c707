"""The files of the programming task: which is taken, and what is said of bad ones."""

import gzip
import importlib.util
from unittest.mock import Mock

import pytest
from humaneval_data import CONFIG, PLUS, write

from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.harness.humaneval import HumanEvalTask, read_problems

NO_OBJECT = r"not a JSON object \(.*\); copy the file again"


def test_the_better_file_is_taken(local_data):
    for name in ("HumanEval.jsonl.gz", "HumanEvalPlus.jsonl.gz", "HumanEvalPlus.jsonl"):
        write(local_data, [row | {"prompt": name, "test": ""} for row in PLUS], name)
        assert {doc["prompt"] for doc in HumanEvalTask(CONFIG).test_docs()} == {name}
    for name in ("HumanEvalPlus.jsonl.gz", "HumanEvalPlus.jsonl"):
        path = write(local_data, PLUS, name)
        assert read_problems(path) == {row["task_id"]: row for row in PLUS}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"base_input": None}, "base_input is None; give a list"),
        ({"atol": "0"}, "atol is '0'; give a int or float"),
        ({"prompt": 3}, "prompt is 3; give a str"),
        ({"task_id": "HumanEval/0"}, "task_id HumanEval/0 occurs twice; remove one"),
    ],
)
def test_bad_rows_are_named(local_data, row, message):
    path = write(local_data, [PLUS[0], PLUS[1] | row])
    with pytest.raises(DataError) as caught:
        HumanEvalTask(CONFIG)
    assert str(caught.value) == f"{path}:2: {message}"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("HumanEvalPlus.jsonl", b"", "the file is empty; copy it again"),
        ("HumanEvalPlus.jsonl", b"{}\n[1]\n", "1: task_id is None; give a str"),
        ("HumanEvalPlus.jsonl", b"[1]\n", f"1: {NO_OBJECT}"),
        ("HumanEvalPlus.jsonl", b'{"a": \n', f"1: {NO_OBJECT}"),
        ("HumanEvalPlus.jsonl", b"\xff\n", f"0: {NO_OBJECT}"),
        ("HumanEval.jsonl.gz", b"{}", f"0: {NO_OBJECT}"),
        ("HumanEval.jsonl.gz", gzip.compress(b"{}" * 99, mtime=0)[:-9], rf"\d: {NO_OBJECT}"),
        ("HumanEval.jsonl.gz", gzip.compress(b"{}", mtime=0), "1: task_id is None; give a str"),
    ],
)
def test_bad_files_are_named(local_data, name, content, message):
    write(local_data, [], name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}:{message}|{name}: {message}") as caught:
        HumanEvalTask(CONFIG)
    assert "\n" not in str(caught.value)


def test_missing_file(local_data):
    with pytest.raises(DataError, match=r"humaneval: none of HumanEvalPlus.* unset COPYSPEC_DATA"):
        HumanEvalTask(CONFIG)


def test_without_local_data_evalplus_downloads(monkeypatch):
    monkeypatch.delenv("COPYSPEC_DATA_DIR", raising=False)
    load = Mock(return_value={row["task_id"]: row for row in PLUS})
    monkeypatch.setattr("evalplus.data.get_human_eval_plus", load)
    assert len(HumanEvalTask(CONFIG).test_docs()) == 2
    load.side_effect = ConnectionError("no network")
    with pytest.raises(DataError, match=r"^cannot download humaneval \(no network\); copy it"):
        HumanEvalTask(CONFIG)


def test_without_evalplus_the_remedy_is_one_line(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OptionError) as caught:
        HumanEvalTask(CONFIG)
    assert str(caught.value).endswith("pip install 'copyspec-eval[humaneval]'")
    assert "\n" not in str(caught.value)
