"""Sides that are no servers: lm-eval's models in this process, and folders of earlier runs."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from copyspec_eval import provenance
from copyspec_eval.audit.replies import Question, Reply, Token
from copyspec_eval.errors import OptionError
from copyspec_eval.harness import autoload
from copyspec_eval.harness.answering import Message
from copyspec_eval.harness.recorded import Arguments, recorded
from copyspec_eval.paths import lm_eval_models
from copyspec_eval.records import AnswerKey, record_of
from copyspec_eval.reports.runs import Answer, read_run
from copyspec_eval.types import TurnCounts


class LocalSide:
    """A model of lm-eval's, timed as by `copyspec-timed`; it lists no log-probabilities.

    Args:
        model: its name in lm-eval.
        arguments: its `--model_args`.
        batch_size: rows at most, where the model takes such a number.
    """

    can_ask = True

    def __init__(self, model: str, arguments: dict[str, Any], batch_size: int) -> None:
        shown = recorded(arguments)
        self.name = ",".join([model, *(f"{name}={value}" for name, value in shown.items())])
        self._model, self._arguments, self._shown = model, arguments, shown
        self._batch_size = "auto" if model in ("vllm", "copyspec-vllm") else batch_size
        self.pretrained = str(arguments.get("pretrained", ""))
        self.is_ours = model in ("copyspec", "hf")

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

    def next_token(self, question: Question, begun: str) -> Token | None:
        return None

    def _instance(self, question: Question) -> Instance:
        messages = question.messages()
        prompt = self.render(messages) if messages else question.prompt
        settings = question.settings | {"until": list(question.stops), "do_sample": False}
        settings |= {"max_gen_toks": question.max_tokens, "temperature": 0.0}
        metadata = (question.key.task, question.key.doc_id, 1)
        return Instance("generate_until", {}, (prompt, settings), 0, metadata)


def _reply(text: Any) -> Reply:
    record = record_of(text)
    counts = record.counts if record else TurnCounts()
    drafts = (counts.drafts or {}).values()
    return Reply(
        text=str(text),
        finish_reason=counts.finish_reason,
        token_ids=record.answer_ids if record else None,
        num_prompt_tokens=counts.num_prompt_tokens,
        num_cached_tokens=counts.num_reused_tokens,
        num_tokens=counts.num_tokens,
        num_drafted=sum(each.num_drafted for each in drafts) if drafts else None,
        num_accepted=sum(each.num_accepted for each in drafts) if drafts else None,
        seconds=counts.latency_seconds or counts.seconds,
    )


class RecordedSide:
    """The folder of an earlier run; it cannot be asked anything else."""

    can_ask = False

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder

    def open(self) -> dict[str, Any]:
        self.run = read_run(self._folder)
        return {"folder": self._folder.name, "model": self.run.model, "dtype": self.run.dtype}

    @property
    def answers(self) -> dict[AnswerKey, Answer]:
        return self.run.answers

    def reply(self, question: Question) -> Reply | None:
        """The recorded answer; None if there is none to this prompt."""
        answer = self.answers.get(question.key)
        if answer is None or (answer.prompt is not None and answer.prompt != question.prompt):
            return None
        return Reply(answer.text, token_ids=answer.token_ids)
