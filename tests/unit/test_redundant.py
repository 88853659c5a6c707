"""Redundant variants of question files, asked of a chat model."""

import json
from pathlib import Path

from judge_server import JudgeServer, Reply

from copyspec_eval import openai_api
from copyspec_eval.cli import main
from copyspec_eval.sources import read_questions


def write(path: Path, *questions: str) -> Path:
    rows = [
        {"question_id": number, "category": "writing", "turns": [question, "More."]}
        for number, question in zip((5, 3, 9), questions, strict=False)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def reply(prompt: str, times: int) -> Reply:
    """Of no use for questions 3 and 9 at first."""
    assert "whole answer again with one change" in prompt
    number = prompt.partition("Write ")[2][0]
    trouble = {"3": Reply("busy", 500), "9": Reply("  ")} if times == 1 else {}
    return trouble.get(number, Reply(f' "Once more, with {number} changed." '))


def test_second_turns_ask_for_the_first_answer_again(tmp_path, capsys, monkeypatch):
    """And what was asked already stays."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(openai_api, "MAX_RETRIES", 0)
    questions, out = tmp_path / "questions.jsonl", tmp_path / "redundant.jsonl"
    command = ["redundant", str(write(questions, "Write 5.", "Write 3.", "Write 9."))]
    with JudgeServer(reply) as server:
        command += ["--model", "m", "--base-url", server.url, "--concurrency", "2", "--out"]
        assert main([*command, str(out)]) == 1
        reported = capsys.readouterr().err
        assert "question 3: not written: HTTP 500: busy" in reported
        assert "question 9: not written: an empty answer" in reported
        assert [row["question_id"] for row in read_questions(out)] == [5]
        assert main([*command, str(out)]) == 0
        assert sorted(server.asked.values()) == [1, 2, 2]
        assert [(row["question_id"], row["turns"]) for row in read_questions(out)] == [
            (number, [f"Write {number}.", f"Once more, with {number} changed."])
            for number in (5, 3, 9)
        ], "in the order of the questions"
        assert main([*command, str(write(tmp_path / "other.jsonl", "Else?"))]) == 1
    assert "question 5 is of another file; give another --out" in capsys.readouterr().err
