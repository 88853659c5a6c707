"""What is asked of a side, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lm_eval.models.utils import normalize_gen_kwargs

from copyspec_eval.records import AnswerKey
from copyspec_eval.types import TurnCounts

_MAX_TOKENS = 256  # lm-eval's own, of a task without a budget


@dataclass(frozen=True, slots=True)
class Question:
    """A request for a greedy answer."""

    key: AnswerKey
    prompt: str  # text to complete, or a chat's messages as lm-eval logs them
    settings: dict[str, Any]  # lm-eval's, normalised
    begun: str = ""  # what the answer begins with; the rest is asked for


def greedy(key: AnswerKey, prompt: str, given: Mapping[str, Any]) -> Question:
    """A request of lm-eval's; what it would sample is decoded greedily all the same."""
    settings: dict[str, Any] = dict(normalize_gen_kwargs(dict(given), _MAX_TOKENS))
    settings |= {"do_sample": False, "temperature": 0.0}
    return Question(key, prompt, settings | {"until": list(filter(None, settings["until"]))})


@dataclass(frozen=True, slots=True)
class Token:
    """A token of an answer, and the log-probabilities of the likeliest tokens in its place."""

    text: str  # what it adds to the answer; "" for the one that ends it
    name: str  # its key in `listed`, which always has it
    listed: dict[str, float]

    @property
    def logprob(self) -> float:
        return self.listed[self.name]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; what a side does not report is None or empty."""

    text: str
    finish_reason: str | None = None
    tokens: tuple[Token, ...] = ()  # only where log-probabilities were asked for and listed
    token_ids: tuple[int, ...] | None = None
    counts: TurnCounts = field(default_factory=TurnCounts)
