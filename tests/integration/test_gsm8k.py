"""The stock `lm_eval` asks a chat server for programs, and scores them."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, Messages
from lm_eval_command import BIN

from copyspec_eval.sources import read_jsonl

TASK = "gsm8k_self_correction"
MARKDOWN = "Sure.\n\n```python\n{}\n```\n\nDone."


def replies(number: int, gold: str) -> list[tuple[str, bool]]:
    """What the server answers in turn 1 and 3 of a problem, and whether it is right."""
    kinds = [
        (MARKDOWN.format(f"print({gold})"), True),
        (MARKDOWN.format(f"print(f'{{{gold}:,}} in all')"), True),
        (MARKDOWN.format(f"print({gold} + 1)"), False),
        (MARKDOWN.format(f"print({gold} / 0)"), False),
        (MARKDOWN.format("answer = input()\nprint(answer)"), False),
        ("I cannot.", False),
    ]
    return [kinds[number % 6], kinds[(number + 1 + number // 6) % 6]]


@pytest.mark.parametrize("count", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_problems_of_the_test_split(data_dir, tmp_path, count):
    rows = [row.fields for row in read_jsonl(data_dir / "gsm8k" / "test.jsonl")][:count]
    answers = {
        row["question"]: replies(number, row["answer"].rpartition("#### ")[2].replace(",", ""))
        for number, row in enumerate(rows)
    }

    def reply(messages: Messages) -> str:
        (first, _), (last, _) = next(
            each for question, each in answers.items() if question in messages[0]["content"]
        )
        return {1: first, 3: "Fine.", 5: last}[len(messages)]

    with ChatServer(reply) as server:
        results, samples, log = evaluate(server, tmp_path, count)
    right = [(first, last) for (_, first), (_, last) in answers.values()]
    assert [(sample["acc_turn1"], sample["acc_turn3"]) for sample in samples] == right
    wanted = {
        "acc_turn1": sum(first for first, _ in right),
        "acc_turn3": sum(last for _, last in right),
        "right_to_wrong": sum(first and not last for first, last in right),
        "wrong_to_right": sum(last and not first for first, last in right),
    }
    for name, number in wanted.items():
        assert 0 < number < count
        assert results[f"{name},none"] == pytest.approx(number / count)
        assert results[f"{name}_stderr,none"] > 0
    assert results["answered,none"] == 1
    assert "exit code 1: ZeroDivisionError: " in log
    assert "exit code 1: EOFError: EOF when reading a line" in log
    assert log.count("untrusted programs run under") == 1
    # Three turns each, every one with the model's own answers before it.
    assert len(server.requests) == 3 * count
    assert {request["max_tokens"] for request in server.requests} == {1024}
    last_turns = [r["messages"] for r in server.requests if len(r["messages"]) == 5]
    histories = {(messages[1]["content"], messages[3]["content"]) for messages in last_turns}
    assert histories == {(first, "Fine.") for (first, _), _ in answers.values()}


def evaluate(server: ChatServer, folder: Path, count: int) -> tuple[dict[str, Any], list[Any], str]:
    """Figures, sample log by document, and what was printed on standard error."""
    options = f"model=x,base_url={server.chat_url},num_concurrent=4"
    command = [str(BIN / "lm_eval"), "--model", "local-chat-completions", "--model_args", options]
    command += ["--tasks", TASK, "--limit", str(count), "--output_path", str(folder)]
    command += ["--apply_chat_template", "--confirm_run_unsafe_code", "--log_samples"]
    environment = {**os.environ, "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [results] = folder.glob("*/results_*.json")
    [samples] = folder.glob("*/samples_*.jsonl")
    rows = map(json.loads, samples.read_text().splitlines())
    figures = json.loads(results.read_text())["results"][TASK]
    return figures, sorted(rows, key=lambda sample: sample["doc_id"]), done.stderr
