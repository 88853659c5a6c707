"""The task classes that the files in `tasks/` name in `class: !function …`."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

from copyspec_eval import sources
from copyspec_eval.errors import report_errors_in_one_line
from copyspec_eval.harness.multiturn import MultiTurnTask

report_errors_in_one_line()


class QuestionFileTask(MultiTurnTask):
    """Conversations of a FastChat-style question file, `dataset_kwargs: {questions: FILE}`.

    FILE is one of `copyspec_eval.sources.FILES`.
    """

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Read the question file as the split "test"."""
        path = sources.locate((dataset_kwargs or {})["questions"])
        self.dataset = {"test": Dataset.from_list(sources.read_questions(path))}
