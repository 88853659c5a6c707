"""In front of any backend: its answers, and the seconds that they took."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM, CacheHook

from copyspec_eval.decoding.loops import looped_tokens
from copyspec_eval.errors import OptionError
from copyspec_eval.records import BaselineTurn
from copyspec_eval.types import Attempt, DraftCounts, DraftSource, FinishReason, Span, TurnCounts

_BATCHES_AT_ONCE, _ROWS_AT_ONCE = 32, 1024
"""Of a backend that fills up its batch by itself: the batch is full but at the end of these, and a
killed run loses no more than these."""


class Rows(NamedTuple):
    """How many requests a backend answers side by side, and how many it is handed at once."""

    side_by_side: int
    at_once: int

    @classmethod
    def refilled(cls, side_by_side: int) -> Rows:
        """Those of a backend whose next request takes the place of one that has ended."""
        at_once = min(side_by_side * _BATCHES_AT_ONCE, _ROWS_AT_ONCE)
        return cls(side_by_side, max(side_by_side, at_once))


class TimedAnswer(NamedTuple):
    """What a backend reports of an answer: tokens that it does not report are None, the rest empty.

    `attempts` and `spans` are those of `Generation`; `baseline` is the answer of a paired run.
    """

    counts: TurnCounts
    token_ids: tuple[int, ...] | None = None
    prompt_ids: tuple[int, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    spans: tuple[Span, ...] = ()
    baseline: BaselineTurn | None = None


class Backend(LM):
    """In front of any backend: the clock covers all that it does, tokenising and network too.

    Attributes:
        fills_batches: whether it may choose `batch_size=auto` itself.
        asks_in_parallel: whether each of several requests under way can be timed.
    """

    fills_batches = asks_in_parallel = False

    def ask(self, group: list[Instance]) -> tuple[list[str], list[TimedAnswer]]:
        """The backend's answers, kept from lm-eval's cache, which gets them with their records."""
        generate = super().generate_until
        quiet = {"disable_tqdm": True} if takes(generate, "disable_tqdm") else {}
        cache: CacheHook = self.cache_hook
        self.set_cache_hook(CacheHook(None))
        try:
            started = perf_counter()
            texts: list[str] = generate(group, **quiet)
            seconds = perf_counter() - started
        finally:
            self.set_cache_hook(cache)
        return texts, self.timed_answers(group, seconds)

    def timed_answers(self, group: list[Instance], seconds: float) -> list[TimedAnswer]:
        """What is reported of the answers just given; `seconds` is what the call took."""
        counts = TurnCounts(seconds=seconds / len(group), latency_seconds=seconds)
        return [TimedAnswer(counts)] * len(group)

    @classmethod
    def check_rows(cls, arguments: dict[str, Any]) -> None:
        """Refuse, before anything is loaded, settings under which no answer can be timed."""
        if not (cls.fills_batches and arguments["batch_size"] == "auto"):
            check_batch_size(arguments["batch_size"])
        if not (cls.asks_in_parallel or is_one(arguments.get("num_concurrent"))):
            raise OptionError(
                f"num_concurrent={arguments['num_concurrent']}: of requests under way at the same "
                "time, none can be timed here; leave num_concurrent out"
            )

    def check_request(self, gen_kwargs: dict[str, Any]) -> None:
        """Refuse, before any is answered, a request whose answer would be wrong."""

    def rows(self) -> Rows:
        size = check_batch_size(self.given_batch_size())
        return Rows(size, size)

    def given_batch_size(self) -> object:
        """Rows that the model answers together; 1 if it does not report it."""
        try:
            return getattr(self, "_batch_size", None) or self.batch_size
        except (AttributeError, NotImplementedError):
            return 1

    def loaded(self) -> dict[str, Any]:
        """Fields of `RunSpec` that are not to be read from the model's own attributes."""
        return {}

    def length(self, prompt: str) -> int:
        """Of a prompt, as the backend orders its requests."""
        return len(prompt)

    def processors(self, gen_kwargs: dict[str, Any]) -> list[str] | None:
        """Names of the logits processors of a request, for the manifest; None if not known."""
        return None


def check_batch_size(value: object) -> int:
    """Rows that can share out the time of their batch."""
    if not (str(value).isdecimal() and int(str(value)) >= 1):
        raise OptionError(
            f"batch_size={value!r} is not a number of at least 1; to share out a batch's time, its "
            "rows must be known: pass --batch_size 1"
        )
    return int(str(value))


def is_one(num_concurrent: object) -> bool:
    return str(num_concurrent) in ("None", "0", "1")


def takes(function: Any, parameter: str) -> bool:
    return parameter in inspect.signature(function).parameters


def with_tokens(
    counts: TurnCounts,
    num_prompt_tokens: int,
    token_ids: Sequence[int],
    finish_reason: FinishReason | None,
) -> TimedAnswer:
    counts = replace(
        counts,
        num_prompt_tokens=num_prompt_tokens,
        num_tokens=len(token_ids),
        num_looped_tokens=looped_tokens(token_ids) if finish_reason == "length" else 0,
        finish_reason=finish_reason,
    )
    return TimedAnswer(counts, tuple(token_ids))


def finish_of(reason: str | None, stop_reason: object) -> FinishReason | None:
    """vLLM reports "stop" for an EOS as well, and then names no stop string."""
    if reason == "stop":
        return "stop" if isinstance(stop_reason, str) else "eos"
    return "length" if reason == "length" else None


def counts_by_source(attempts: Sequence[Attempt]) -> dict[DraftSource, DraftCounts]:
    """The sums of drafts that are of one source each."""
    sums: dict[DraftSource, DraftCounts] = {}
    for drafted, accepted, source in attempts:
        so_far = sums.get(source, DraftCounts())
        sums[source] = DraftCounts(
            so_far.num_attempts + 1, so_far.num_drafted + drafted, so_far.num_accepted + accepted
        )
    return sums
