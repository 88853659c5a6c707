"""The group `copyspec`: all five tasks in one command, without a network."""

import json
from typing import Any

import pytest
from lm_eval_command import Command

TURNS = {"mt_bench": 2, "mt_redundant": 2, "gsm8k_self_correction": 3}
TURNS |= {"cnn_dailymail_extractive": 1, "humaneval_evalplus": 1}
MORE = ("--limit", "2", "--gen_kwargs", "max_gen_toks=16", "--confirm_run_unsafe_code")
SCORES = {
    "cnn_dailymail_extractive": {"rouge1", "rouge2", "rougeL", "verbatim"},
    "humaneval_evalplus": {"pass@1_base"},
}


class AllTasks(Command):
    """The same command for the group."""

    def arguments(self, *more: str, **named: str) -> list[str]:
        words = super().arguments(*more, **named)
        return ["copyspec" if word == "mt_redundant" else word for word in words]


def samples_in(command: Command, task: str) -> list[tuple[Any, Any]]:
    """Prompts and answers of every document."""
    [file] = command.output.glob(f"*/samples_{task}_*.jsonl")
    samples = map(json.loads, file.read_text().splitlines())
    return [(sample["arguments"], sample["resps"]) for sample in samples]


@pytest.mark.slow
def test_all_five_tasks_on_our_model_and_on_hf(byte_model, data_dir, tmp_path):
    ours = AllTasks(byte_model, data_dir, tmp_path / "ours")
    stock = AllTasks(byte_model, data_dir, tmp_path / "stock")
    ours.run(*MORE)
    stock.run(*MORE, model="hf", options="")
    for command in (ours, stock):
        results = command.results()["results"]
        for task in TURNS:
            for score in {"answered"} | SCORES.get(task, set()):
                assert 0 <= results[task][f"{score},none"] <= 1
        for name in ("samples.jsonl", "samples_raw.jsonl"):
            rows = map(json.loads, (command.output / name).read_text().splitlines())
            assert [row["task_id"] for row in rows] == ["HumanEval/0", "HumanEval/1"]
    assert {row.task for row in ours.rows()} == TURNS.keys()
    assert ours.results()["config"]["copyspec"]["figures"].keys() == TURNS.keys()
    assert len(ours.rows()) == 2 * sum(TURNS.values())
    for task, turns in TURNS.items():
        samples = samples_in(ours, task)
        assert [len(answers) for _, answers in samples] == [turns, turns]
        assert samples == samples_in(stock, task)
