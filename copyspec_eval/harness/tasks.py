"""The task classes that the files in `tasks/` name in `class: !function …`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from copyspec_eval import sources
from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.harness.fastchat_prompts import FastChatInstance, template_of_run
from copyspec_eval.harness.multiturn import MultiTurnTask, TurnInstance


class QuestionFileTask(MultiTurnTask):
    """Conversations of a FastChat-style question file, `dataset_kwargs: {questions: FILE}`.

    FILE is one of `copyspec_eval.sources.FILES`, or a path (docs/tasks.md). With
    `prompts: fastchat`, FastChat's template renders the prompts, as in the paper's code.
    """

    def documents(self, dataset_kwargs: dict[str, Any]) -> list[dict[str, Any]]:
        name, prompts = dataset_kwargs.get("questions"), dataset_kwargs.get("prompts")
        is_known = dataset_kwargs.keys() <= {"questions", "prompts"}
        if not isinstance(name, str) or not is_known or prompts not in (None, "fastchat"):
            raise OptionError(
                f"{self.config.task}: dataset_kwargs {dataset_kwargs!r}; give questions: FILE, and "
                "prompts: fastchat or nothing else"
            )
        self._template = template_of_run(self.config.metadata or {}) if prompts else ""
        path = sources.locate(name) if name in sources.FILES else Path(name).expanduser()
        if not path.is_file():
            raise DataError(
                f"{path}: no such file; give a path from the folder that lm_eval is started in, or "
                f"one of {', '.join(file for file in sources.FILES if 'question' in file)}"
            )
        return [dict(question) for question in sources.read_questions(path)]

    def new_request(self, *args: Any) -> TurnInstance:
        if not self._template:
            return super().new_request(*args)
        request = FastChatInstance(*args)
        request.template = self._template
        return request
