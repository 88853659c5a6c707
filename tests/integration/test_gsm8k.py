"""The stock `lm_eval` asks a chat server for programs, and scores as a direct run of them does."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, Messages
from lm_eval_command import BIN

from copyspec_eval.sources import read_jsonl


@dataclass(frozen=True)
class Problem:
    """A problem, and the programs that the server gives for it in turn 1 and 3; None: no block."""

    question: str
    gold: str
    programs: tuple[str | None, str | None]


def problems_of(path: Path, count: int) -> list[Problem]:
    rows = [row.fields for row in read_jsonl(path)][:count]
    return [problem_of(number, **row) for number, row in enumerate(rows)]


def problem_of(number: int, question: str, answer: str) -> Problem:
    gold = answer.rsplit("#### ", 1)[1].replace(",", "")
    steps = re.findall(r"<<([-+*/().0-9]+)=[^<>]*>>", answer)
    kinds = (
        f"print({gold})",
        f"x = {steps[-1] if steps else gold}\nprint(f'{{x:,}} in all')",
        f"print({gold} + 1)",
        f"print({gold} / 0)",
        "answer = input()\nprint(answer)",
        None,
    )
    return Problem(question, gold, (kinds[number % 6], kinds[number // 6 % 6]))


def answered_right(problem: Problem, turn: int) -> bool:
    """By a direct run, without anything of ours."""
    program = problem.programs[turn // 2]
    if program is None:
        return False
    command = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        return False
    printed = float(done.stdout.split()[0].replace(",", ""))
    return abs(printed - float(problem.gold)) <= 1e-6 * abs(float(problem.gold))


def reply_with(program: str | None) -> str:
    return "I cannot." if program is None else f"Sure.\n\n```python\n{program}\n```\n\nDone."


@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_problems_of_the_test_split(data_dir, tmp_path, count):
    problems = problems_of(data_dir / "gsm8k" / "test.jsonl", count)

    def reply(messages: Messages) -> str:
        problem = next(p for p in problems if p.question in messages[0]["content"])
        return {1: reply_with(problem.programs[0]), 3: "Fine.", 5: reply_with(problem.programs[1])}[
            len(messages)
        ]

    with ChatServer(reply) as server:
        results, samples, log = evaluate(server, tmp_path, count)
    right = [tuple(answered_right(problem, turn) for turn in (1, 3)) for problem in problems]
    assert len(samples) == count
    assert [(sample["acc_turn1"], sample["acc_turn3"]) for sample in samples] == right
    wanted = {
        "acc_turn1": sum(first for first, _ in right),
        "acc_turn3": sum(last for _, last in right),
        "right_to_wrong": sum(first and not last for first, last in right),
        "wrong_to_right": sum(last and not first for first, last in right),
    }
    assert all(0 < number < count for number in wanted.values())
    for name, number in wanted.items():
        assert results[f"{name},none"] == pytest.approx(number / count)
        assert results[f"{name}_stderr,none"] > 0
    assert results["answered,none"] == 1
    assert "exit code 1: ZeroDivisionError: " in log
    assert "exit code 1: EOFError: EOF when reading a line" in log
    assert log.count("untrusted programs run under") == 1
    check_requests(server, problems)


def check_requests(server: ChatServer, problems: list[Problem]) -> None:
    """Three turns each, every one with the model's own answers before it."""
    assert len(server.requests) == 3 * len(problems)
    assert {request["max_tokens"] for request in server.requests} == {1024}
    last = [request["messages"] for request in server.requests if len(request["messages"]) == 5]
    assert {messages[1]["content"] for messages in last} == {
        reply_with(problem.programs[0]) for problem in problems
    }
    assert {messages[3]["content"] for messages in last} == {"Fine."}


def evaluate(server: ChatServer, folder: Path, count: int) -> tuple[dict[str, Any], list[Any], str]:
    """Figures, sample log by document, and what was printed on standard error."""
    options = f"model=x,base_url={server.chat_url},num_concurrent=4"
    command = [str(BIN / "lm_eval"), "--model", "local-chat-completions", "--model_args", options]
    command += ["--tasks", "gsm8k_self_correction", "--limit", str(count)]
    command += ["--apply_chat_template", "--confirm_run_unsafe_code", "--log_samples"]
    command += ["--output_path", str(folder)]
    environment = {**os.environ, "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [results] = folder.glob("*/results_*.json")
    [samples] = folder.glob("*/samples_*.jsonl")
    rows = sorted(
        map(json.loads, samples.read_text().splitlines()), key=lambda sample: sample["doc_id"]
    )
    return json.loads(results.read_text())["results"]["gsm8k_self_correction"], rows, done.stderr
