"""Exported files are what FastChat and EvalPlus read."""

import json
import sys
from typing import Any

import pytest
from evalplus.data import load_solutions
from run_folders import sample, write_conversations, write_log

from copyspec_eval.cli import main

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
BEGUN = PROBLEM["prompt"].strip() + "\n"
FIRST = sample(0, ["Q"], [["A"]])


def export(kind, folder, out=None):
    return main(["export", kind, str(folder), "--out", str(out or folder / "out")])


def test_fastchat_answers(tmp_path, capsys):
    tasks = ("mt_bench", "mt_redundant")
    for task in tasks:
        write_conversations(tmp_path, task, QUESTIONS, "{question_id}.{turn}\u2028")
    write_log(tmp_path, [FIRST], model_name_sanitized="org__model")
    for _ in range(2):
        assert export("fastchat", tmp_path) == 0, "the export is no part of the run"
        files = [tmp_path / "out" / task / "model_answer" / "org__model.jsonl" for task in tasks]
        assert capsys.readouterr().out.splitlines() == list(map(str, files))
    for path in files:
        first, second = (json.loads(line) for line in path.read_text().splitlines())
        assert isinstance(first.pop("tstamp"), float)
        assert first.pop("answer_id") != second["answer_id"]
        choices = [{"index": 0, "turns": ["81.1\u2028", "81.2\u2028"]}]
        assert first == {"question_id": 81, "model_id": "org__model", "choices": choices}


@pytest.mark.parametrize("name", ["a\x00b", "../a", "", 5, None, {}, "no results"])
def test_the_folder_names_a_model_whose_name_no_file_can_have(name, tmp_path):
    log = write_conversations(tmp_path / "my run", "mt_bench", QUESTIONS)
    [results] = log.parent.glob("results_*.json")
    written = json.loads(results.read_text()) | {"model_name_sanitized": name}
    results.write_text(json.dumps(written))
    if name == "no results":
        results.unlink()
    assert export("fastchat", tmp_path / "my run", tmp_path / "out") == 0
    assert [path.name for path in (tmp_path / "out").rglob("*/*/[!.]*")] == ["my__run.jsonl"]


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        (f"<user>{PROBLEM['prompt']}```<assistant>", f"Sure:\n```python\n{PROGRAM}\n```\nBye."),
        (BEGUN, "    return a + 1\n"),
        (f"Be terse.\n\n{BEGUN}", "    return a + 1\nprint(add(1)"),
        ("Q", "\0 no"),
    ],
)
def test_evalplus_samples(prompt, answer, tmp_path, capsys):
    row = sample(0, [prompt], [[answer]]) | {"doc": PROBLEM}
    write_log(tmp_path, [row], task="humaneval_evalplus", model_name_sanitized="m")
    assert export("evalplus", tmp_path) == 0
    path = tmp_path / "out" / "m.jsonl"
    assert capsys.readouterr().out == f"{path}\n"
    [solution] = load_solutions(str(path))
    assert solution["task_id"] == "HumanEval/7"
    assert isinstance(solution["solution"], str)
    if prompt != "Q":  # else what is no program is exported as it is
        names: dict[str, Any] = {}
        exec(solution["solution"], names)
        assert names["add"](1) == 2
        assert "print" not in solution["solution"]


def test_evalplus_errors(tmp_path, monkeypatch, capsys):
    def error():
        assert export("evalplus", tmp_path) == 1
        return capsys.readouterr().err

    write_log(tmp_path, [FIRST])
    assert "no answers to humaneval_evalplus; run that" in error()
    write_log(tmp_path, [FIRST], task="humaneval_evalplus")
    assert "doc 0: its task_id is not recorded" in error()
    write_log(tmp_path, [FIRST | {"doc": PROBLEM}], task="humaneval_evalplus")
    (tmp_path / "out").touch()
    assert "out: cannot be written (File exists); free space there" in error()
    monkeypatch.setitem(sys.modules, "evalplus.sanitize", None)
    assert "pip install 'copyspec-eval[humaneval]'" in error()


BOTH = sample(0, ["Q", "R"], [["A"], ["B"]])
NO_ID = "doc 0: its question_id is not recorded; run lm_eval with --log_samples"


@pytest.mark.parametrize(
    ("task", "row", "message"),
    [
        ("other", FIRST, "no answers to mt_bench, mt_redundant or a question file; run"),
        ("mt_bench", FIRST | {"doc": QUESTIONS[0]}, "doc 0: the second answer is missing"),
        *(
            ("mt_bench", BOTH | {"doc": QUESTIONS[0] | {"turns": turns}}, "its turns is not that o")
            for turns in (None, 5, ["Hi"], [1, 2], {"a": 1})
        ),
        *(("mt_bench", BOTH | {"doc": doc}, NO_ID) for doc in (5, "x", ["turns"])),
    ],
)
def test_answers_that_are_no_conversations_are_refused_in_one_line(
    task, row, message, tmp_path, capsys
):
    write_log(tmp_path, [row], task=task)
    assert export("fastchat", tmp_path) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("link", ["mt_bench", "mt_bench/model_answer"])
def test_nothing_is_written_through_a_link(link, tmp_path, capsys):
    write_conversations(tmp_path / "run", "mt_bench", QUESTIONS)
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    (elsewhere / "model_answer").mkdir(parents=True)
    (out / link).parent.mkdir(parents=True)
    (out / link).symlink_to(elsewhere)
    assert export("fastchat", tmp_path / "run", out) == 1
    assert f"{out / link}: is a link; remove it" in capsys.readouterr().err
    assert [path.name for path in elsewhere.rglob("*")] == ["model_answer"]


def test_the_folder_to_export_to_has_to_be_named(tmp_path):
    with pytest.raises(SystemExit) as caught:
        main(["export", "turns", str(tmp_path)])
    assert caught.value.code == 2
