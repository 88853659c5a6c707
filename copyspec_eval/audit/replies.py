"""What is asked of a side, and what it answers."""

import json
from dataclasses import dataclass
from typing import Any

from copyspec_eval.records import AnswerKey

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Question:
    """A request for a greedy answer."""

    key: AnswerKey
    prompt: str  # text to complete, or a chat's messages as JSON
    stops: tuple[str, ...]
    max_tokens: int
    settings: dict[str, Any]  # as lm-eval gave them, for models of its own

    def messages(self) -> list[Message] | None:
        """The messages of a chat; None if the prompt is text."""
        return chat_of(self.prompt)


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
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None  # of the prompt's, read from the prefix cache
    num_tokens: int | None = None
    num_drafted: int | None = None
    num_accepted: int | None = None
    seconds: float | None = None


def chat_of(prompt: str) -> list[Message] | None:
    """The messages that a logged prompt stands for, also as lm-eval logs those of API models.

    >>> chat_of('[{"role": "user", "content": "Hi"}]')
    [{'role': 'user', 'content': 'Hi'}]
    >>> chat_of("User: Hi"), chat_of("[1]")
    (None, None)
    """
    try:
        value = json.loads(prompt)
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
            value = json.loads(value[0])
        chat = [{"role": each["role"], "content": each["content"]} for each in value]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return chat or None
