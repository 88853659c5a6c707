"""Redundant variants of question files, asked of a chat model."""

import json
from pathlib import Path
from typing import Any

import pytest
from judge_server import JudgeServer, Reply

from copyspec_eval.cli import main
from copyspec_eval.scoring import chat
from copyspec_eval.sources import read_questions

QUESTIONS = [
    {"question_id": number, "category": "writing", "turns": [f"Write {number}.", f"More {number}."]}
    for number in (5, 3, 9)
]


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(chat, "MAX_RETRIES", 0)
    return write(tmp_path / "questions.jsonl", QUESTIONS)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def again(prompt: str, _: int) -> Reply:
    number = prompt.partition("Write ")[2].partition(".")[0]
    return Reply(f' "Once more, with {number} changed." ')


def redundant(questions: Path, server: JudgeServer, out: Path) -> int:
    command = ["redundant", str(questions), "--model", "m", "--base-url", server.url]
    return main([*command, "--out", str(out), "--concurrency", "2"])


def test_second_turns_ask_for_the_first_answer_again(questions, tmp_path):
    out = tmp_path / "redundant.jsonl"
    with JudgeServer(again) as server:
        assert redundant(questions, server, out) == 0
        [request, *_] = server.requests
        assert "whole answer again with one change" in request["messages"][-1]["content"]
    made = read_questions(out)
    assert [row["question_id"] for row in made] == [5, 3, 9], "in the order of the questions"
    assert [row["turns"] for row in made] == [
        [f"Write {number}.", f"Once more, with {number} changed."] for number in (5, 3, 9)
    ]


def test_what_was_asked_is_kept(questions, tmp_path, capsys):
    def at_first(prompt: str, times: int) -> Reply:
        if "Write 3" in prompt and times == 1:
            return Reply("busy", 500)
        if "Write 9" in prompt and times == 1:
            return Reply("  ")
        return again(prompt, times)

    out = tmp_path / "redundant.jsonl"
    with JudgeServer(at_first) as server:
        assert redundant(questions, server, out) == 1
        reported = capsys.readouterr().err
        assert "question 3: not written: HTTP 500: busy" in reported
        assert "question 9: not written: an empty answer" in reported
        assert [row["question_id"] for row in read_questions(out)] == [5]
        assert redundant(questions, server, out) == 0
        assert max(server.asked.values()) == 2
        assert sum(server.asked.values()) == 5
    assert len(read_questions(out)) == 3


def test_another_files_variant_is_refused(questions, tmp_path, capsys):
    other = write(tmp_path / "other.jsonl", [{**QUESTIONS[0], "turns": ["Else?", "More?"]}])
    with JudgeServer(again) as server:
        assert redundant(questions, server, other) == 1
    assert "question 5 is of another file; give another --out" in capsys.readouterr().err
