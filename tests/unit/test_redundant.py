"""Redundant variants of question files, asked of a chat model."""

import json
from pathlib import Path

import pytest
from judge_server import JudgeServer, Reply

from copyspec_eval.cli import main
from copyspec_eval.scoring import chat
from copyspec_eval.sources import read_questions


def write(path: Path, *questions: str) -> Path:
    rows = [
        {"question_id": number, "category": "writing", "turns": [question, "More."]}
        for number, question in zip((5, 3, 9), questions, strict=False)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(chat, "MAX_RETRIES", 0)
    return write(tmp_path / "questions.jsonl", "Write 5.", "Write 3.", "Write 9.")


def again(prompt: str, _: int = 0) -> Reply:
    number = prompt.partition("Write ")[2].partition(".")[0]
    return Reply(f' "Once more, with {number} changed." ')


def redundant(questions: Path, server: JudgeServer, out: Path) -> int:
    command = ["redundant", str(questions), "--model", "m", "--base-url", server.url]
    return main([*command, "--out", str(out), "--concurrency", "2"])


def test_second_turns_ask_for_the_first_answer_again(questions, tmp_path, capsys):
    """And what was asked already stays."""
    trouble = {3: Reply("busy", 500), 9: Reply("  ")}

    def at_first(prompt: str, times: int) -> Reply:
        assert "whole answer again with one change" in prompt
        number = int(prompt.partition("Write ")[2][0])
        return trouble.get(number, again(prompt)) if times == 1 else again(prompt)

    out = tmp_path / "redundant.jsonl"
    with JudgeServer(at_first) as server:
        assert redundant(questions, server, out) == 1
        reported = capsys.readouterr().err
        assert "question 3: not written: HTTP 500: busy" in reported
        assert "question 9: not written: an empty answer" in reported
        assert [row["question_id"] for row in read_questions(out)] == [5]
        assert redundant(questions, server, out) == 0
        assert sorted(server.asked.values()) == [1, 2, 2]
        assert [(row["question_id"], row["turns"]) for row in read_questions(out)] == [
            (number, [f"Write {number}.", f"Once more, with {number} changed."])
            for number in (5, 3, 9)
        ], "in the order of the questions"
        other = write(tmp_path / "other.jsonl", "Else?")
        assert redundant(questions, server, other) == 1
    assert "question 5 is of another file; give another --out" in capsys.readouterr().err
