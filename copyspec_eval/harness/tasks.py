"""The task classes that the files in `tasks/` name in `class: !function …`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from copyspec_eval import sources
from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.harness.multiturn import MultiTurnTask


class QuestionFileTask(MultiTurnTask):
    """Conversations of a FastChat-style question file, `dataset_kwargs: {questions: FILE}`.

    FILE is one of `copyspec_eval.sources.FILES`, or a path (docs/tasks.md).
    """

    def documents(self, dataset_kwargs: dict[str, Any]) -> list[dict[str, Any]]:
        name = dataset_kwargs.get("questions")
        if not isinstance(name, str) or len(dataset_kwargs) > 1:
            raise OptionError(
                f"{self.config.task}: dataset_kwargs {dataset_kwargs!r}; give questions: FILE alone"
            )
        path = sources.locate(name) if name in sources.FILES else Path(name).expanduser()
        if not path.is_file():
            raise DataError(
                f"{path}: no such file; give a path from the folder that lm_eval is started in, or "
                f"one of {', '.join(file for file in sources.FILES if 'question' in file)}"
            )
        return [dict(question) for question in sources.read_questions(path)]
