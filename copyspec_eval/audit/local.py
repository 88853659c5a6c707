"""Sides that are no servers: lm-eval's models in this process, and folders of earlier runs."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from copyspec_eval import provenance
from copyspec_eval.audit.replies import Question, Reply
from copyspec_eval.errors import OptionError
from copyspec_eval.harness import autoload
from copyspec_eval.harness.answering import Message, rendered
from copyspec_eval.harness.recorded import Arguments, recorded
from copyspec_eval.paths import lm_eval_models
from copyspec_eval.records import record_of
from copyspec_eval.reports.runs import read_run


class LocalSide:
    """A model of lm-eval's, timed as by `copyspec-timed`; it lists no log-probabilities.

    Args:
        model: its name in lm-eval.
        arguments: its `--model_args`.
        batch_size: rows at most, where the model takes such a number.
    """

    def __init__(self, model: str, arguments: dict[str, Any], batch_size: int) -> None:
        shown = recorded(arguments)
        self.name = ",".join([model, *(f"{name}={value}" for name, value in shown.items())])
        self._model, self._arguments, self._shown = model, arguments, shown
        self._batch_size = "auto" if model in ("vllm", "copyspec-vllm") else batch_size

    def open(self) -> dict[str, Any]:
        autoload.register_model()
        is_timed = self._model not in lm_eval_models().names
        name = "copyspec-timed" if is_timed else self._model
        base = {"base": self._model} if is_timed else {}
        if self._model == "hf":  # its default is "cuda", whether there is such a device or not
            base |= {"device": "cuda" if torch.cuda.is_available() else "cpu"}
        arguments = Arguments({"batch_size": self._batch_size} | base | self._arguments)
        try:
            self._lm: Any = get_model(name).create_from_arg_obj(arguments)
        except (ImportError, OSError, TypeError, ValueError) as error:
            reason = f"{self.name}: cannot be loaded ({error}); check its arguments"
            raise OptionError(reason) from error
        return {
            "model": self._model,
            "arguments": self._shown,
            "dtype": str(getattr(getattr(self._lm, "model", None), "dtype", "unknown")),
            "versions": provenance.versions(),
            "hardware": provenance.hardware(),
            "environment": provenance.kernel_environment(),
            "threads": torch.get_num_threads(),
        }

    def render(self, messages: Sequence[Message], begins: bool = True) -> str:
        """The prompt for the next message, or for the rest of the last one."""
        return str(self._lm.apply_chat_template(list(messages), add_generation_prompt=begins))

    @property
    def has_template(self) -> bool:
        return bool(getattr(getattr(self._lm, "tokenizer", None), "chat_template", None))

    def ask(
        self, questions: Sequence[Question], concurrency: int, listing: bool, cold: bool = False
    ) -> Iterator[tuple[int, Reply]]:
        """Index and answer of each question, `concurrency` at a time as one batch."""
        for start in range(0, len(questions), concurrency):
            group = questions[start : start + concurrency]
            texts = self._lm.generate_until([self._instance(q) for q in group], disable_tqdm=True)
            for index, text in enumerate(texts, start):
                yield index, _reply(text)

    def _instance(self, question: Question) -> Instance:
        arguments = (rendered(question.prompt, self._lm), question.settings)
        metadata = (question.key.task, question.key.doc_id, 1)
        return Instance("generate_until", {}, arguments, 0, metadata)


def _reply(text: Any) -> Reply:
    if (record := record_of(text)) is None:
        return Reply(str(text))
    counts = record.counts
    return Reply(str(text), counts.finish_reason, token_ids=record.answer_ids, counts=counts)


class RecordedSide:
    """The folder of an earlier run; it cannot be asked anything else."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder

    def open(self) -> dict[str, Any]:
        self.run = read_run(self._folder)
        return {"folder": self._folder.name, "model": self.run.model, "dtype": self.run.dtype}

    def reply(self, question: Question) -> Reply:
        answer = self.run.answers[question.key]
        return Reply(answer.text, token_ids=answer.token_ids)
