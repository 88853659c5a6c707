"""Conversations in lm-eval: one request per document and turn, whatever the backend.

lm-eval runs its requests type by type. Turn 1 has the type `generate_until`, turn k
`generate_until_turn{k}`, a method that importing this module adds to lm-eval's model classes. So
lm-eval asks turn 1 of all documents, then turn 2 of all documents, and so on. A `TurnInstance`
renders its prompt from the earlier answers when the model reads it.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from functools import partial
from itertools import chain
from typing import Any

import numpy
from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.api.model import LM, CachingLM
from lm_eval.api.task import ConfigurableTask

from copyspec_eval.errors import DataError, OptionError, report_errors_in_one_line
from copyspec_eval.provenance import is_of_this_process
from copyspec_eval.records import record_of
from copyspec_eval.reports.summary import METRICS, Metric
from copyspec_eval.reports.turns import columns

report_errors_in_one_line()
MAX_TURNS = 8
# Those that lm-eval's table shows; its results file has all of them in `config.copyspec.figures`.
_SHOWN = [metric for metric in METRICS if metric.name in ("speedup", "identical")]
Message = dict[str, str]
ChatTemplate = Callable[..., str]


def render(messages: Sequence[Message], chat_template: ChatTemplate | None) -> str:
    r"""The prompt for the assistant's next message; plain text without a chat template.

    Answers go in as they were generated, so each prompt begins with the last prompt and answer.

    >>> chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " Yes?"}]
    >>> render([*chat, {"role": "user", "content": "Bye"}], None)
    'User: Hi\n\nAssistant: Yes?\n\nUser: Bye\n\nAssistant:'
    """
    if chat_template is not None:
        return chat_template(list(messages), add_generation_prompt=True)
    start = {"system": "", "user": "User: ", "assistant": "Assistant:"}
    return "".join(f"{start[m['role']]}{m['content']}\n\n" for m in messages) + "Assistant:"


class TurnInstance(Instance):
    """The request for one turn of one document, counted from 1; `previous` is the turn before."""

    def __init__(
        self,
        doc: dict[str, Any],
        question: str,
        previous: "TurnInstance | None",
        generation_kwargs: dict[str, Any],
        metadata: tuple[str | None, int | None, int | None],
        system: str = "",
    ) -> None:
        self.turn: int = previous.turn + 1 if previous else 1
        self.question, self.previous, self.system = question, previous, system
        self.chat_template: ChatTemplate | None = None  # set when all requests are built
        kind = "generate_until" if self.turn == 1 else f"generate_until_turn{self.turn}"
        super().__init__(kind, doc, generation_kwargs, self.turn - 1, metadata)

    @property
    def arguments(self) -> tuple[str, dict[str, Any]]:
        """Prompt and generation settings, readable once the turn before is answered."""
        return self.prompt(), self.settings()

    @arguments.setter
    def arguments(self, generation_kwargs: dict[str, Any]) -> None:
        self._generation_kwargs = generation_kwargs

    def settings(self) -> dict[str, Any]:
        return self._generation_kwargs

    def prompt(self) -> str:
        return render(self.messages(), self.chat_template)

    def messages(self) -> list[Message]:
        question = {"role": "user", "content": self.question}
        if self.previous is None:
            system = [{"role": "system", "content": self.system}] if self.system else []
            return [*system, question]
        # Padding for data parallelism may answer a request twice; the first answer counts.
        text = str(self.previous.resps[0] or "")
        return [*self.previous.messages(), {"role": "assistant", "content": text}, question]


class MultiTurnTask(ConfigurableTask):
    """A task whose documents are conversations.

    A subclass has `documents` and `user_turns` for what is asked, and `score_names` and `score` for
    what the answers are worth.

    Figures: `answered`, the share of answers that are not blank, for every backend; the subclass's
    scores; and, of the answers of a paired run, `speedup` and `identical`. A figure without a value
    is left out, e.g. the speed-up when every answer came from lm-eval's cache. Rank 0 decides for
    the run.
    """

    new_request: Callable[..., TurnInstance] = TurnInstance

    def __init__(self, config: dict[str, Any]) -> None:
        # lm-eval leaves in the key that named this class. Without the others it would add metrics
        # of its own, and take --num_fewshot where the file gives no number.
        given = {key: value for key, value in config.items() if key != "class"}
        super().__init__(config={"metric_list": [], "num_fewshot": 0} | given)
        for name, only in (("repeats", 1), ("num_fewshot", 0), ("gen_prefix", None)):
            value = self.get_config(name)
            if value != only and value is not None:
                raise OptionError(
                    f"{self.task_name}: {name}: {value!r} is not possible with turns; "
                    "remove it from the task's YAML file"
                )
        self.num_turns = len(self.user_turns(self.task_docs[0]))
        if not 1 <= self.num_turns <= MAX_TURNS:
            raise DataError(
                f"{self.task_name}: {self.num_turns} turns in a document; give 1 to {MAX_TURNS}"
            )
        scores = {"answered": True} | self.score_names()
        self._higher_is_better |= scores | {metric.name: True for metric in _SHOWN}
        self._aggregation_list |= dict.fromkeys(scores, mean)
        self._aggregation_list |= {metric.name: partial(_over, metric) for metric in _SHOWN}
        self._rank = 0
        self._reported: set[str] = set()

    def documents(self, dataset_kwargs: dict[str, Any]) -> list[dict[str, Any]]:
        """The documents that `dataset_kwargs` in the YAML file ask for."""
        raise NotImplementedError

    def user_turns(self, doc: dict[str, Any]) -> list[str]:
        return list(doc["turns"])

    def score_names(self) -> dict[str, bool]:
        """The task's own figures, and whether higher is better."""
        return {}

    def check_scoring(self) -> None:
        """Raise, before anything is answered, what would keep answers from being scored."""

    def prepare_scores(self) -> None:
        """Called once all answers are in, before the first `score`."""

    def score(self, doc: dict[str, Any], answers: list[str]) -> dict[str, float]:
        """The task's own figures of one document's answers, in order of turn."""
        return {}

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.dataset = {"test": Dataset.from_list(self.documents(dict(dataset_kwargs or {})))}

    def doc_to_text(self, doc: dict[str, Any], doc_to_text: Any = None) -> str:
        return self.user_turns(doc)[0]

    def doc_to_target(self, doc: dict[str, Any], doc_to_target: Any = None) -> str:
        return ""

    def build_all_requests(self, **kwargs: Any) -> None:
        """As lm-eval's; then every request, even one of `--cache_requests`, gets the template."""
        if self._is_scored:
            self.check_scoring()
        self._rank = kwargs.get("rank", 0)
        super().build_all_requests(**kwargs)
        for instance in self._instances:
            instance.chat_template = kwargs.get("chat_template")

    def fewshot_context(self, *args: Any, **kwargs: Any) -> str:
        """The system instruction alone: a `TurnInstance` renders its prompt."""
        return kwargs.get("system_instruction") or ""

    def construct_requests(
        self, doc: dict[str, Any], ctx: str, metadata: Any, **kwargs: Any
    ) -> list[TurnInstance]:
        description = self.resolve_field(doc, self.config.description)
        system = "\n\n".join(filter(None, (ctx, description)))
        requests: list[TurnInstance] = []
        for question in self.user_turns(doc):
            previous = requests[-1] if requests else None
            settings = deepcopy(self.config.generation_kwargs)
            requests.append(self.new_request(doc, question, previous, settings, metadata, system))
        return requests

    def apply_filters(self) -> None:
        """As lm-eval's; then choose which figures to report, since all answers are in.

        lm-eval gathers the figures that rank 0 reports, which are those with a value, and stops on
        a rank that lacks one. So the other ranks report all.
        """
        super().apply_filters()
        if self._is_scored:
            parts = _contributions(each.resps[0] for each in self._instances)
            self._reported = {name for name in parts if self._rank or parts[name]}
            self.prepare_scores()

    def process_results(self, doc: dict[str, Any], results: list[Any]) -> dict[str, Any]:
        if not self._is_scored:
            return {"bypass": 999}  # lm-eval's own value under --predict_only
        texts = [str(answer or "") for answer in results]
        parts = _contributions(results)
        figures: dict[str, Any] = {name: parts[name] for name in parts if name in self._reported}
        figures["answered"] = mean([float(bool(text.strip())) for text in texts])
        return figures | self.score(doc, texts)

    @property
    def _is_scored(self) -> bool:
        return "bypass" not in self._metric_fn_list


def _contributions(answers: Iterable[object]) -> dict[str, list[tuple[float, ...]]]:
    """By metric the values of its columns, of the answers that have them."""
    parts: dict[str, list[tuple[float, ...]]] = {metric.name: [] for metric in _SHOWN}
    for answer in answers:
        record = record_of(answer)
        fields = columns(record) if record else {}
        # An earlier run measured an answer from lm-eval's cache.
        is_measured = record is not None and is_of_this_process(record.run_id)
        for metric in _SHOWN:
            values: Any = tuple(fields.get(name) for name in metric.columns)
            if None not in values and (is_measured or "seconds" not in metric.columns):
                parts[metric.name].append(values)
    return parts


def _over(metric: Metric, documents: Iterable[list[tuple[float, ...]]]) -> float:
    return metric.combine(numpy.array([*chain(*documents)], dtype=float))


def _generate_until(self: Any, requests: list[Instance]) -> list[str]:
    return self.generate_until(requests)  # type: ignore[no-any-return]


for turn in range(2, MAX_TURNS + 1):
    for kind in (LM, CachingLM):
        setattr(kind, f"generate_until_turn{turn}", _generate_until)
