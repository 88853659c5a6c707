"""In front of lm-eval models that ask a server."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from types import SimpleNamespace
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models import api_models
from tqdm.asyncio import tqdm_asyncio

from copyspec_eval.harness.backends.base import (
    Backend,
    Rows,
    TimedAnswer,
    counts_by_source,
    finish_of,
    is_one,
)
from copyspec_eval.harness.backends.vllm import attempts
from copyspec_eval.redaction import without_secrets
from copyspec_eval.types import Attempt, TurnCounts


@dataclass(slots=True)
class _Call:
    """A request to the server; times are by `perf_counter`."""

    contexts: Sequence[Any]
    slots: Any = None
    reply: dict[str, Any] = field(default_factory=dict)
    started: float | None = None
    ended: float | None = None

    async def acquire(self) -> bool:
        """As the semaphore; the clock starts when the request may be sent."""
        await self.slots.acquire()
        self.started = perf_counter()
        return True

    def release(self) -> None:
        self.slots.release()


_under_way: ContextVar[_Call] = ContextVar("_under_way")


class APIBackend(Backend):
    """The clock covers the whole call, network too.

    With `num_concurrent=N` the server is kept busy with N requests: each has a latency of its own,
    and an even share of the time in which all were answered.
    """

    asks_in_parallel = True

    def rows(self) -> Rows:
        rows = super().rows()
        if is_one(self._concurrent):
            return rows
        return Rows.refilled(rows.side_by_side * int(self._concurrent))

    def ask(self, group: list[Instance]) -> tuple[list[str], list[TimedAnswer]]:
        self._calls: list[_Call] = []
        with _without_notices():
            texts, timed = super().ask(group)
        return list(map(without_secrets, texts)), timed  # a server may echo them

    def timed_answers(self, group: list[Instance], seconds: float) -> list[TimedAnswer]:
        """With the server's counts, which are those of a whole call."""
        counts = TurnCounts(seconds=seconds / len(group), latency_seconds=seconds)
        of_context: defaultdict[Any, list[_Call]] = defaultdict(list)
        for call in self._calls:
            if len(call.contexts) == 1 and call.reply:
                of_context[call.contexts[0]].append(call)
        alone = len(group) == 1
        return [
            _timed_answer(counts, calls.pop(0), alone) if calls else TimedAnswer(counts)
            for calls in (of_context[instance.args[0]] for instance in group)
        ]

    async def amodel_call(
        self, session: Any, sem: Any, messages: Any, *, cache_keys: Any = None, **kwargs: Any
    ) -> Any:
        """The backend's; it is what lm-eval sends each of several requests under way with."""
        call = _Call([context for context, _ in cache_keys or ()], sem)
        _under_way.set(call)
        answers = await super().amodel_call(
            session, call, messages, cache_keys=cache_keys, **kwargs
        )
        call.ended = perf_counter()
        self._calls.append(call)  # not if it is to be sent again
        return answers

    def parse_generations(self, outputs: Any, **kwargs: Any) -> Any:
        """The backend's; it is what lm-eval calls with each reply."""
        replies = outputs if isinstance(outputs, list) else [outputs]
        call = _under_way.get(None)
        if call is None:
            call = _Call(kwargs.get("contexts") or ())
            self._calls.append(call)
        if len(replies) == 1:
            call.reply = replies[0]
        return super().parse_generations(outputs=outputs, **kwargs)


def _timed_answer(counts: TurnCounts, call: _Call, alone: bool) -> TimedAnswer:
    """What a reply says of its only answer, in the form of OpenAI's servers and of vLLM's.

    Forwards are never told, and the draft tokens beyond the end of an answer not always.
    """
    usage = call.reply.get("usage") or {}
    metrics = call.reply.get("metrics") or {}
    [choice, *_] = call.reply.get("choices") or [{}]
    num_tokens, reason = usage.get("completion_tokens"), choice.get("finish_reason")
    if reason == "stop" and "stop_reason" not in choice:
        reason = None  # an EOS or a stop string
    made = _attempts(metrics.get("speculative_decoding") or {}, num_tokens)
    counts = replace(
        counts,
        num_prompt_tokens=usage.get("prompt_tokens"),
        num_reused_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        num_tokens=num_tokens,
        drafts=counts_by_source(made) or None,
        finish_reason=finish_of(reason, choice.get("stop_reason")),
    )
    if call.started is not None and call.ended is not None:
        counts = replace(counts, latency_seconds=call.ended - call.started)
    first = metrics.get("time_to_first_token_ms")
    if alone and first is not None and counts.seconds is not None:
        prefill = first / 1000
        counts = replace(counts, prefill_seconds=prefill, decode_seconds=counts.seconds - prefill)
    token_ids = choice.get("token_ids")
    return TimedAnswer(counts, None if token_ids is None else tuple(token_ids), attempts=made)


def _attempts(metrics: dict[str, Any], num_tokens: int | None) -> tuple[Attempt, ...]:
    """Of vLLM's `metrics.speculative_decoding`, at its level "detailed"."""
    drafted = metrics.get("per_step_drafted") or ()
    if num_tokens is None:
        return ()
    # At least the prefill and a forward for each draft; there may be more.
    num_forwards = 1 + len(drafted)
    accepted = metrics.get("per_step_accepted") or ()
    return attempts(drafted, accepted, num_tokens, num_forwards, "unknown")


@contextmanager
def _without_notices() -> Iterator[None]:
    """Keep lm-eval's API models from showing a bar and a notice for every single call."""
    level, bar = api_models.eval_logger.level, api_models.tqdm
    api_models.eval_logger.setLevel(logging.WARNING)
    api_models.tqdm = partial(bar, disable=True)
    api_models.tqdm_asyncio = SimpleNamespace(gather=partial(tqdm_asyncio.gather, disable=True))
    try:
        yield
    finally:
        api_models.eval_logger.setLevel(level)
        api_models.tqdm, api_models.tqdm_asyncio = bar, tqdm_asyncio
