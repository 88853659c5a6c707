"""A model of lm-eval that gives the answers that it was made with, and its evaluation."""

import functools
from typing import Any
from unittest import mock

import lm_eval
from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from copyspec_eval.paths import tasks_dir


@functools.cache
def _tasks() -> TaskManager:
    return TaskManager(include_path=[tasks_dir()], include_defaults=False)


def counting(**config: Any) -> dict[str, Any]:
    """A task of lm-eval's own kind: five documents to answer, without scores."""
    documents = Dataset.from_list([{"question": f"Count to {number}."} for number in range(5)])
    task: dict[str, Any] = {"task": "counting", "metric_list": [{"metric": "bypass"}]}
    task |= {"custom_dataset": lambda **_: {"test": documents}, "test_split": "test"}
    task |= {"output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": ""}
    return task | {"generation_kwargs": {"until": ["."], "max_gen_toks": 4}} | config


def evaluated(lm: LM, *tasks: Any, **options: Any) -> dict[str, Any]:
    """What lm-eval makes of tasks of ours; `options` as of `simple_evaluate`."""
    settings: dict[str, Any] = {"confirm_run_unsafe_code": True, "bootstrap_iters": 0}
    with mock.patch("lm_eval.evaluator.add_env_info", return_value=None):
        results: dict[str, Any] = lm_eval.simple_evaluate(
            lm, tasks=list(tasks), task_manager=_tasks(), **(settings | options)
        )
    return results


def figures_in(results: dict[str, Any], task: str) -> dict[str, float]:
    """A task's figures, without lm-eval's standard errors."""
    return {
        name.removesuffix(",none"): value
        for name, value in results["results"][task].items()
        if name.endswith(",none") and "_stderr" not in name
    }


def figures(lm: LM, task: str, **options: Any) -> dict[str, float]:
    return figures_in(evaluated(lm, task, **options), task)


class Scripted(LM):  # type: ignore[misc]  # lm-eval's classes carry no types
    """Gives these answers in turn, and notes what it was asked."""

    tokenizer_name = "scripted"

    def __init__(self, *answers: str | None) -> None:
        super().__init__()
        self.answers = answers
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[Any]:
        self.asked += [request.args for request in requests]
        return list(self.answers[: len(requests)])

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        text = "".join(f"<{m['role']}>{m['content']}" for m in chat_history)
        return text + "<assistant>" * add_generation_prompt

    def chat_template(self, chat_template: bool | str = False) -> str:
        return "scripted"

    loglikelihood = loglikelihood_rolling = None
