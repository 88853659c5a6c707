"""lm-eval's tasks as questions to both sides, and their scores for each side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.utils import normalize_gen_kwargs

from copyspec_eval.audit.asking import Asking
from copyspec_eval.audit.replies import Question
from copyspec_eval.harness.answering import Render, have_answered, without_unsafe
from copyspec_eval.records import AnswerKey
from copyspec_eval.reports.runs import Scores

_MAX_TOKENS = 256  # lm-eval's own, of a task without a budget
_HANDLED = ("until", "max_gen_toks", "do_sample", "temperature")


@dataclass(frozen=True, slots=True)
class Tasks:
    names: tuple[str, ...]
    limit: int | None
    gen_kwargs: str | None
    runs_code: bool  # whether the programs that a model wrote may be run, to score them
    render: Render | None

    def ask(self, asking: Asking) -> None:
        """Have both sides answer all turns; conversations go on from A's answers."""

        def answer(requests: Sequence[Instance]) -> list[str]:
            pairs = asking.answer([_question(request) for request in requests])
            return [pair.a.text if pair.a else "" for pair in pairs]

        have_answered(self.names, answer, self.render, False, **self._settings)

    def scores(self, texts: Mapping[AnswerKey, str]) -> Scores:
        """The tasks' scores of these answers; without tasks whose programs may not be run."""
        names = self.names if self.runs_code else without_unsafe(self.names)
        if not names:
            return {}

        def answer(requests: Sequence[Instance]) -> list[str]:
            return [texts.get(_key(request), "") for request in requests]

        settings = self._settings | {"confirm_run_unsafe_code": self.runs_code}
        return have_answered(names, answer, self.render, True, **settings)

    @property
    def _settings(self) -> dict[str, Any]:
        return {"limit": self.limit, "gen_kwargs": self.gen_kwargs}


def _key(request: Instance) -> AnswerKey:
    return AnswerKey(request.task_name or "", request.doc_id or 0, getattr(request, "turn", 1), 0)


def _question(request: Instance) -> Question:
    prompt, given = request.args
    return question(_key(request), str(prompt), given)


def question(key: AnswerKey, prompt: str, given: Mapping[str, Any]) -> Question:
    """A request of lm-eval's; what it would sample is decoded greedily all the same."""
    settings: dict[str, Any] = dict(normalize_gen_kwargs(dict(given), _MAX_TOKENS))
    others = {name: value for name, value in settings.items() if name not in _HANDLED}
    stops = tuple(text for text in settings["until"] if text)
    return Question(key, prompt, stops, settings["max_gen_toks"], others)
