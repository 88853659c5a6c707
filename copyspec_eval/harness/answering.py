"""lm-eval's tasks, answered by a function instead of a model."""

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from copyspec_eval.errors import OptionError
from copyspec_eval.harness import autoload
from copyspec_eval.paths import tasks_dir
from copyspec_eval.reports.runs import Scores, add_scores

Message = dict[str, str]
Render = Callable[[Sequence[Message], bool], str]
"""The prompt for a chat's next message; or, if the flag is not set, for the rest of the last."""
Answer = Callable[[Sequence[Instance]], list[str]]


class _FunctionLM(LM):
    """An lm-eval model whose texts are those of `answer`, which gets each request once."""

    tokenizer_name = "function"

    def __init__(self, answer: Answer, render: Render | None) -> None:
        super().__init__()
        self._answer, self._render = answer, render

    def apply_chat_template(
        self, chat_history: list[Message], add_generation_prompt: bool = True
    ) -> str:
        assert self._render is not None
        return self._render(chat_history, add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str:
        return ""

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        once = list({id(request): request for request in requests}.values())
        texts = dict(zip(map(id, once), self._answer(once), strict=True))
        return [texts[id(request)] for request in requests]

    def loglikelihood(self, requests: list[Instance]) -> Any:
        task = requests[0].task_name
        raise OptionError(f"{task}: it asks for no generated answers; choose other --tasks")

    loglikelihood_rolling = loglikelihood


def chat_of(prompt: str) -> list[Message] | None:
    """The messages of a prompt for a chat server, as lm-eval logs it; None for a text.

    >>> messages = '[{"role": "user", "content": "Hi"}]'
    >>> chat_of(json.dumps([messages])), chat_of(messages), chat_of("User: Hi")
    ([{'role': 'user', 'content': 'Hi'}], None, None)
    """
    try:
        [text] = json.loads(prompt)
        chat = [{"role": each["role"], "content": each["content"]} for each in json.loads(text)]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return chat or None


def rendered(prompt: str, lm: Any) -> str:
    """The prompt as `lm` reads it, even if a chat server got it as messages."""
    chat = chat_of(prompt)
    if chat is None:
        return prompt
    begins = chat[-1]["role"] != "assistant"
    return str(lm.apply_chat_template(chat, add_generation_prompt=begins))


def have_answered(
    names: Sequence[str], answer: Answer, render: Render | None, is_scored: bool, **settings: Any
) -> Scores:
    """Have `answer` answer the tasks `names`, turn after turn; their scores if they are wanted.

    `render` is None for prompts without a chat template; `settings` are of `simple_evaluate`.
    Programs are run only where the tasks' own settings and `confirm_run_unsafe_code` allow it.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    try:
        results = simple_evaluate(
            _FunctionLM(answer, render),
            tasks=list(names),
            task_manager=_manager(names),
            apply_chat_template=render is not None,
            predict_only=not is_scored,
            log_samples=True,
            bootstrap_iters=0,
            **{"confirm_run_unsafe_code": not is_scored} | settings,
        )
    except (KeyError, ValueError) as error:
        raise OptionError(f"--tasks {','.join(names)}: {error}") from error
    assert results is not None
    scores: Scores = {}
    for task, samples in results["samples"].items() if is_scored else ():
        for sample in samples:
            add_scores(scores, task, sample)
    return scores


def without_unsafe(names: Sequence[str]) -> list[str]:
    """The tasks among `names`, or in its groups, whose scoring runs no program of a model's."""
    tasks = _manager(names).load(list(names))["tasks"]
    return [name for name, task in tasks.items() if not getattr(task, "UNSAFE_CODE", False)]


def _manager(names: Sequence[str]) -> TaskManager:
    """With our tasks alone where they are enough, since lm-eval takes seconds to find its own."""
    ours = {path.stem for path in tasks_dir().rglob("*.yaml")}
    if ours.issuperset(names):
        return TaskManager(include_path=str(tasks_dir()), include_defaults=False)
    autoload.register_tasks()
    return TaskManager()
