"""The task classes that the files in `tasks/` name in `class: !function …`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset

from copyspec_eval import sources
from copyspec_eval.errors import DataError, OptionError, report_errors_in_one_line
from copyspec_eval.harness.multiturn import MultiTurnTask

report_errors_in_one_line()


class QuestionFileTask(MultiTurnTask):
    """Conversations of a FastChat-style question file, `dataset_kwargs: {questions: FILE}`.

    FILE is one of `copyspec_eval.sources.FILES`, or a path: a YAML file of five lines makes a task
    of any question file (docs/tasks.md).

    Raises:
        OptionError: no file is named, or something else is.
        DataError: as `read_questions`.
    """

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Read the question file as the split "test"."""
        given = dict(dataset_kwargs or {})
        name = given.pop("questions", None)
        if not isinstance(name, str) or given:
            raise OptionError(
                f"{self.config.task}: dataset_kwargs {dataset_kwargs!r}; give questions: FILE alone"
            )
        path = sources.locate(name) if name in sources.FILES else Path(name).expanduser()
        if not path.is_file():
            raise DataError(
                f"{path}: no such file; give a path from the folder that lm_eval is started in, or "
                f"one of {', '.join(file for file in sources.FILES if 'question' in file)}"
            )
        self.dataset = {"test": Dataset.from_list(sources.read_questions(path))}
