"""Exported files are what FastChat and EvalPlus read."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evalplus.data import load_solutions
from run_folders import sample, write_conversations, write_log
from sample_rows import ROW

from copyspec_eval import records
from copyspec_eval.cli import main
from copyspec_eval.errors import DataError
from copyspec_eval.reports.conversations import conversations
from copyspec_eval.reports.export import write_fastchat
from copyspec_eval.reports.runs import read_run
from copyspec_eval.scoring.judging import Conversation

QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["Hi", "Bye"]},
    {"question_id": 82, "category": "math", "turns": ["1+1?", "Why?"]},
]
PROBLEM = {
    "task_id": "HumanEval/7",
    "prompt": '\nfrom typing import List\n\ndef add(a: int) -> int:\n    """Add."""\n',
    "entry_point": "add",
}
PROGRAM = "def add(a: int) -> int:\n    return a + 1"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_conversations_are_both_turns_of_a_document(tmp_path):
    write_conversations(tmp_path, "mt_redundant", QUESTIONS, "{question_id}.{turn}\u2028")
    answers = ("81.1\u2028", "81.2\u2028")
    first, _ = conversations(read_run(tmp_path))["mt_redundant"]
    assert first == Conversation(81, "writing", ("Hi", "Bye"), answers)


def test_fastchat_answers(tmp_path, capsys):
    for task in ("mt_bench", "mt_redundant"):
        write_conversations(tmp_path, task, QUESTIONS, "{question_id}.{turn}\u2028")
    write_log(tmp_path, [sample(0, ["Q"], [["A"]])], model_name_sanitized="org__model")
    assert main(["export", "fastchat", str(tmp_path), "--out", str(tmp_path / "fastchat")]) == 0
    paths = [
        tmp_path / "fastchat" / task / "model_answer" / "org__model.jsonl"
        for task in ("mt_bench", "mt_redundant")
    ]
    assert capsys.readouterr().out.splitlines() == list(map(str, paths))
    for path in paths:
        first, second = read(path)
        assert isinstance(first.pop("tstamp"), float)
        assert first.pop("answer_id") != second["answer_id"]
        turns = ["81.1\u2028", "81.2\u2028"]
        assert first == {
            "question_id": 81,
            "model_id": "org__model",
            "choices": [{"index": 0, "turns": turns}],
        }
    assert len(read_run(tmp_path).answers) == 9, "the export is no part of the run"


def test_the_folder_names_a_model_that_the_results_do_not(tmp_path):
    folder = tmp_path / "my run"
    log = write_conversations(folder, "mt_bench", QUESTIONS)
    next(log.parent.glob("results_*")).unlink()
    [path] = write_fastchat(read_run(folder), tmp_path / "out")
    assert path == tmp_path / "out" / "mt_bench" / "model_answer" / "my__run.jsonl"


def test_an_incomplete_run_is_refused_in_one_line(tmp_path):
    write_log(tmp_path / "other", [sample(0, ["Q"], [["A"]])])
    with pytest.raises(
        DataError, match="no answers to mt_bench, mt_redundant or a question file; run"
    ):
        conversations(read_run(tmp_path / "other"))
    short = sample(3, ["Q"], [["A"]]) | {"doc": QUESTIONS[0]}
    write_log(tmp_path / "short", [short], task="mt_bench")
    with pytest.raises(DataError, match="mt_bench doc 3: the second answer is missing"):
        conversations(read_run(tmp_path / "short"))
    for turn in (1, 2):
        records.append(tmp_path / "bare" / "turns.jsonl", replace(ROW, turn=turn))
    with pytest.raises(DataError, match=r"doc 3: its question_id is not recorded.* --log_samples"):
        conversations(read_run(tmp_path / "bare"))


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        (
            "<user>" + PROBLEM["prompt"] + "```<assistant>",
            f"Sure:\n```python\n{PROGRAM}\n```\nBye.",
        ),
        (PROBLEM["prompt"].strip() + "\n", "    return a + 1\n"),
        ("Be terse.\n\n" + PROBLEM["prompt"].strip() + "\n", "    return a + 1\nprint(add(1)"),
    ],
)
def test_evalplus_samples(prompt, answer, tmp_path, capsys):
    row = sample(0, [prompt], [[answer]]) | {"doc": PROBLEM}
    write_log(tmp_path, [row], task="humaneval_evalplus", model_name_sanitized="m")
    assert main(["export", "evalplus", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    path = tmp_path / "out" / "m.jsonl"
    assert capsys.readouterr().out == f"{path}\n"
    [solution] = load_solutions(str(path))
    assert solution["task_id"] == "HumanEval/7"
    names: dict[str, Any] = {}
    exec(solution["solution"], names)
    assert names["add"](1) == 2
    assert "print" not in solution["solution"]


def test_an_answer_that_is_no_program_is_exported_as_it_is(tmp_path):
    row = sample(0, ["Q"], [["\0 no"]]) | {"doc": PROBLEM}
    write_log(tmp_path, [row], task="humaneval_evalplus", model_name_sanitized="m")
    assert main(["export", "evalplus", str(tmp_path), "--out", str(tmp_path / "evalplus")]) == 0
    [solution] = load_solutions(str(tmp_path / "evalplus" / "m.jsonl"))
    assert isinstance(solution["solution"], str)


def test_evalplus_errors(tmp_path, monkeypatch, capsys):
    def error() -> str:
        assert main(["export", "evalplus", str(tmp_path), "--out", str(tmp_path / "evalplus")]) == 1
        return str(capsys.readouterr().err)

    write_log(tmp_path, [sample(0, ["Q"], [["A"]])])
    assert "no answers to humaneval_evalplus; run that" in error()
    write_log(tmp_path, [sample(0, ["Q"], [["A"]])], task="humaneval_evalplus")
    assert "doc 0: its task_id is not recorded" in error()
    row = sample(0, ["Q"], [["A"]]) | {"doc": PROBLEM}
    write_log(tmp_path, [row], task="humaneval_evalplus")
    (tmp_path / "evalplus").touch()
    assert "evalplus: cannot be written (File exists); free space there" in error()
    monkeypatch.setitem(sys.modules, "evalplus.sanitize", None)
    assert "pip install 'copyspec-eval[humaneval]'" in error()


def odd(turns: Any) -> dict[str, Any]:
    return {"question_id": 81, "category": "x", "turns": turns}


@pytest.mark.parametrize(
    ("doc", "message"),
    [
        *(
            (odd(turns), "its turns is not that of a document (")
            for turns in (None, 5, ["Hi"], [1, 2], {"a": 1})
        ),
        *((doc, "its question_id is not recorded") for doc in (5, "x", ["turns"])),
    ],
)
def test_a_document_of_another_shape_is_one_line(doc, message, tmp_path, capsys):
    row = sample(0, ["Q", "R"], [["A"], ["B"]])
    write_log(tmp_path, [row | {"doc": doc}], task="mt_bench")
    assert main(["export", "fastchat", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert f"mt_bench doc 0: {message}" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["a\x00b", "../a", "", 5, None, {}])
def test_a_name_that_no_file_can_have_is_not_used(name, tmp_path):
    write_conversations(tmp_path / "run", "mt_bench", QUESTIONS)
    [results] = tmp_path.rglob("results_*.json")
    written = json.loads(results.read_text()) | {"model_name_sanitized": name}
    results.write_text(json.dumps(written))
    out = tmp_path / "fastchat"
    assert main(["export", "fastchat", str(tmp_path / "run"), "--out", str(out)]) == 0
    assert [path.name for path in out.rglob("*/*/[!.]*")] == ["run.jsonl"]


@pytest.mark.parametrize("link", ["mt_bench", "mt_bench/model_answer"])
def test_nothing_is_written_through_a_link(link, tmp_path, capsys):
    write_conversations(tmp_path / "run", "mt_bench", QUESTIONS)
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    (elsewhere / "model_answer").mkdir(parents=True)
    (out / link).parent.mkdir(parents=True)
    (out / link).symlink_to(elsewhere)
    assert main(["export", "fastchat", str(tmp_path / "run"), "--out", str(out)]) == 1
    assert f"{out / link}: is a link; remove it" in capsys.readouterr().err
    assert [path.name for path in elsewhere.rglob("*")] == ["model_answer"]


def test_the_folder_to_export_to_has_to_be_named(tmp_path):
    with pytest.raises(SystemExit) as caught:
        main(["export", "turns", str(tmp_path)])
    assert caught.value.code == 2
