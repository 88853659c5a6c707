"""Conversations in lm-eval: one request per document and turn, whatever the backend.

lm-eval runs its requests type by type, in the order in which the types first occur. Turn 1 is the
type `generate_until`, turn k `generate_until_turn{k}`: so lm-eval asks turn 1 of all documents,
then turn 2 of all documents, and so on. A `TurnInstance` renders its prompt from the earlier
answers at the moment the model reads it. lm-eval only lacks methods of those names;
importing this module adds them to its model classes, and they do what `generate_until` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, ClassVar

import numpy
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.api.model import LM, CachingLM
from lm_eval.api.task import ConfigurableTask

from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.provenance import is_of_this_process
from copyspec_eval.records import TurnRecord, record_of
from copyspec_eval.reports.summary import METRICS, Metric
from copyspec_eval.reports.turns import columns
from copyspec_eval.sandbox import choice

MAX_TURNS = 8

Message = dict[str, str]
ChatTemplate = Callable[..., str]
Fields = dict[str, Any]


def render(messages: Sequence[Message], chat_template: ChatTemplate | None) -> str:
    r"""The prompt for the assistant's next message.

    Without a chat template it is plain text. The answers are put in as they were generated, so that
    each turn's prompt begins with the prompt and the answer before it.

    >>> chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " Yes?"}]
    >>> render([*chat, {"role": "user", "content": "Bye"}], None)
    'User: Hi\n\nAssistant: Yes?\n\nUser: Bye\n\nAssistant:'
    """
    if chat_template is not None:
        return chat_template(list(messages), add_generation_prompt=True)
    start = {"system": "", "user": "User: ", "assistant": "Assistant:"}
    return "".join(f"{start[m['role']]}{m['content']}\n\n" for m in messages) + "Assistant:"


class TurnInstance(Instance):
    """The request for one turn of one document.

    Attributes:
        turn: counts from 1.
        question: the user's message in this turn.
        previous: the request of the turn before; None in turn 1.
        system: the system message, "" for none.
        chat_template: the model's, bound when all requests are built; None renders plain text.
    """

    def __init__(
        self,
        doc: dict[str, Any],
        question: str,
        previous: TurnInstance | None,
        generation_kwargs: dict[str, Any],
        metadata: tuple[str | None, int | None, int | None],
        system: str = "",
    ) -> None:
        self.turn: int = previous.turn + 1 if previous else 1
        self.question = question
        self.previous = previous
        self.system = system
        self.chat_template: ChatTemplate | None = None
        super().__init__(
            request_type="generate_until" if self.turn == 1 else f"generate_until_turn{self.turn}",
            doc=doc,
            arguments=generation_kwargs,
            idx=self.turn - 1,
            metadata=metadata,
        )

    @property
    def arguments(self) -> tuple[str, dict[str, Any]]:
        """Prompt and generation settings, readable once the turn before is answered."""
        return render(self.messages(), self.chat_template), self._generation_kwargs

    @arguments.setter
    def arguments(self, generation_kwargs: dict[str, Any]) -> None:
        self._generation_kwargs = generation_kwargs

    def messages(self) -> list[Message]:
        """The conversation up to and with this turn's question."""
        question = {"role": "user", "content": self.question}
        if self.previous is None:
            system = [{"role": "system", "content": self.system}] if self.system else []
            return [*system, question]
        # Padding for data parallelism may answer a request twice; the first answer counts.
        answer = self.previous.resps[0]
        text = "" if answer is None else str(answer)
        return [*self.previous.messages(), {"role": "assistant", "content": text}, question]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the chat template: it is a model's, and bound anew to cached requests."""
        return self.__dict__ | {"chat_template": None}


class MultiTurnTask(ConfigurableTask):
    """A task whose documents are conversations.

    A document's `turns` are the user's messages; a subclass may compose them in `user_turns`.
    Figures: `answered_turn{k}`, the share of answers that are not blank, for every backend; and, of
    answers that carry a `TurnRecord`, each of `METRICS` as `{name}_turn{k}`: per document what it
    contributes, over the task what the metric makes of that.

    A figure is left out where it has no value: all of `METRICS` for another backend, the timed ones
    when every answer came from lm-eval's cache, those of pairs when the run was not paired,
    `accepted_per_attempt` when nothing was copied. Rank 0 decides for the run.

    Attributes:
        runs_programs: whether scoring runs what a model wrote, so that a sandbox has to be there
            before anything is answered.

    Raises:
        OptionError: `repeats`, `num_fewshot` or `gen_prefix` in the task's YAML file.
        DataError: documents with different numbers of turns, or more than `MAX_TURNS`.
    """

    runs_programs: ClassVar[bool] = False

    def __init__(self, config: dict[str, Any]) -> None:
        # lm-eval leaves in the key that named this class; it would add metrics of its own, and take
        # --num_fewshot where the file gives no number.
        given = {key: value for key, value in config.items() if key != "class"}
        config = {"metric_list": [], "num_fewshot": 0} | given
        super().__init__(config=config)
        self._check_config()
        self.num_turns = len(self.user_turns(self.task_docs[0]))
        if not 1 <= self.num_turns <= MAX_TURNS:
            raise DataError(
                f"{self.task_name}: {self.num_turns} turns in a document; give 1 to {MAX_TURNS}"
            )
        for turn in range(1, self.num_turns + 1):
            self._aggregation_list[f"answered_turn{turn}"] = mean
            self._higher_is_better[f"answered_turn{turn}"] = True
            for metric in METRICS:
                self._aggregation_list[_key(metric, turn)] = partial(_over, metric)
                self._higher_is_better[_key(metric, turn)] = metric.higher_is_better
        self._system_instruction: str | None = None
        self._rank = 0
        self._reported: set[str] = set()

    def user_turns(self, doc: dict[str, Any]) -> list[str]:
        """The user's message in each turn of `doc`."""
        return list(doc["turns"])

    def doc_to_text(self, doc: dict[str, Any], doc_to_text: Any = None) -> str:
        """The first question."""
        return self.user_turns(doc)[0]

    def doc_to_target(self, doc: dict[str, Any], doc_to_target: Any = None) -> Any:
        """No reference answer unless a subclass has one."""
        return ""

    def build_all_requests(
        self,
        *,
        rank: int = 0,
        system_instruction: str | None = None,
        apply_chat_template: bool = False,
        chat_template: ChatTemplate | None = None,
        **kwargs: Any,
    ) -> None:
        """As lm-eval's; then give every request, built or from `--cache_requests`, the template.

        Raises:
            OptionError: programs would be run to score them, and this machine does not contain any.
        """
        if self.runs_programs and "bypass" not in self._metric_fn_list:
            choice.level()
        self._rank = rank
        self._system_instruction = system_instruction
        super().build_all_requests(
            rank=rank,
            system_instruction=system_instruction,
            apply_chat_template=apply_chat_template,
            chat_template=chat_template,
            **kwargs,
        )
        for instance in self._instances:
            instance.chat_template = chat_template if apply_chat_template else None

    def fewshot_context(self, *args: Any, **kwargs: Any) -> str:
        """Nothing: a `TurnInstance` renders its own prompt, that of turn 1 too."""
        return ""

    def construct_requests(
        self, doc: dict[str, Any], ctx: str, metadata: Any, **kwargs: Any
    ) -> list[TurnInstance]:
        """One request per turn, each holding the one before."""
        turns = self.user_turns(doc)
        if len(turns) != self.num_turns:
            raise DataError(
                f"{self.task_name}: document {metadata[1]} has {len(turns)} turns, the first has "
                f"{self.num_turns}; give every document the same number"
            )
        system = self._system_message(doc)
        requests: list[TurnInstance] = []
        for question in turns:
            previous = requests[-1] if requests else None
            settings = deepcopy(self.config.generation_kwargs)
            requests.append(TurnInstance(doc, question, previous, settings, metadata, system))
        return requests

    def apply_filters(self) -> None:
        """As lm-eval's; all answers are in by then, so choose which figures to report."""
        super().apply_filters()
        every = {_key(metric, turn + 1) for metric in METRICS for turn in range(self.num_turns)}
        self._reported = every if self._rank else self._with_a_value()

    def process_results(self, doc: dict[str, Any], results: list[Any]) -> dict[str, Any]:
        """The figures of one document; its answers are in order of turn."""
        if "bypass" in self._metric_fn_list:
            return {"bypass": 999}  # lm-eval's own value under --predict_only
        figures: dict[str, Any] = {}
        for turn, answer in enumerate(results, start=1):
            figures[f"answered_turn{turn}"] = float(bool(str(answer or "").strip()))
            fields = _fields(record_of(answer))
            for metric in METRICS:
                if _key(metric, turn) in self._reported:
                    figures[_key(metric, turn)] = _parts(metric, fields)
        return figures

    def _with_a_value(self) -> set[str]:
        """Figures that this rank's answers have a value for.

        lm-eval gathers rank 0's figures from all ranks, and stops on a rank that lacks one. So the
        other ranks report every figure, and those that rank 0 does not report go unread.
        """
        by_turn: dict[int, list[Fields]] = {}
        for instance in self._instances:
            by_turn.setdefault(instance.turn, []).append(_fields(record_of(instance.resps[0])))
        return {
            _key(metric, turn)
            for turn, of_turn in by_turn.items()
            for metric in METRICS
            if not math.isnan(_over(metric, (_parts(metric, fields) for fields in of_turn)))
        }

    def _system_message(self, doc: dict[str, Any]) -> str:
        description = self.resolve_field(doc, self.config.description)
        return "\n\n".join(filter(None, (self._system_instruction, description)))

    def _check_config(self) -> None:
        for name, only in (("repeats", 1), ("num_fewshot", 0), ("gen_prefix", None)):
            value = self.get_config(name)
            if value != only and value is not None:
                raise OptionError(
                    f"{self.task_name}: {name}: {value!r} is not possible with turns; "
                    "remove it from the task's YAML file"
                )


def _key(metric: Metric, turn: int) -> str:
    return f"{metric.name}_turn{turn}"


def _fields(record: TurnRecord | None) -> Fields:
    """The columns of a turn; without its times unless this run measured the answer.

    An answer from lm-eval's cache was measured by an earlier run.
    """
    if record is None:
        return {}
    return columns(record) | {"measured": is_of_this_process(record.run_id)}


def _parts(metric: Metric, fields: Fields) -> tuple[Any, ...] | None:
    """A turn's contribution to a metric; None without the values that it needs."""
    values = tuple(fields.get(name) for name in metric.columns)
    return None if None in values or (metric.timed and not fields["measured"]) else values


def _over(metric: Metric, parts: Iterable[tuple[float, ...] | None]) -> float:
    """A metric of documents' contributions; NaN without any."""
    values = numpy.array([part for part in parts if part is not None], dtype=float)
    return metric.over(values, numpy.arange(len(values))) if len(values) else math.nan


def _generate_until(self: Any, requests: list[Instance]) -> list[str]:
    """`generate_until` under the name of a later turn."""
    answers: list[str] = self.generate_until(requests)
    return answers


def _add_turn_methods() -> None:
    for turn in range(2, MAX_TURNS + 1):
        for owner in (LM, CachingLM):
            setattr(owner, f"generate_until_turn{turn}", _generate_until)


_add_turn_methods()
