"""What is timed and counted of lm-eval models that ask a server."""

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

from copyspec_eval.harness import backends
from copyspec_eval.harness.backends.vllm import attempts
from copyspec_eval.redaction import without_secrets
from copyspec_eval.types import Attempt, TurnCounts


@dataclass(slots=True)
class _Call:
    """A request to the server, times by `perf_counter`; lm-eval takes it for its semaphore."""

    contexts: Sequence[Any]
    slots: Any = None
    reply: dict[str, Any] = field(default_factory=dict)
    started: float | None = None
    ended: float | None = None

    async def acquire(self) -> bool:
        await self.slots.acquire()
        self.started = perf_counter()
        return True

    def release(self) -> None:
        self.slots.release()


_under_way: ContextVar[_Call] = ContextVar("_under_way")


class APIBackend(backends.Backend):
    """The clock covers the whole call, including the network.

    With `num_concurrent=N` the server is kept busy with N requests: each has its own latency, and
    an even share of the time in which all were answered.
    """

    asks_in_parallel = True

    @property
    def refills(self) -> bool:  # type: ignore[override]
        return not backends.is_one(self._concurrent)

    def rows(self) -> int:
        return super().rows() * (int(self._concurrent) if self.refills else 1)

    def ask(self, group: list[Instance]) -> tuple[list[str], list[backends.TimedAnswer]]:
        self._calls: list[_Call] = []
        with _without_notices():
            texts, timed = super().ask(group)
        return list(map(without_secrets, texts)), timed  # a server may echo them

    def timed_answers(self, group: list[Instance], seconds: float) -> list[backends.TimedAnswer]:
        counts = TurnCounts(seconds=seconds / len(group), latency_seconds=seconds)
        by_context: defaultdict[Any, list[_Call]] = defaultdict(list)
        for call in self._calls:
            if len(call.contexts) == 1 and call.reply:
                by_context[call.contexts[0]].append(call)
        is_alone = len(group) == 1
        return [
            _timed_answer(counts, calls.pop(0), is_alone) if calls else backends.TimedAnswer(counts)
            for calls in (by_context[instance.args[0]] for instance in group)
        ]

    async def amodel_call(self, session: Any, sem: Any, messages: Any, **kwargs: Any) -> Any:
        """lm-eval sends each of several concurrent requests through this."""
        call = _Call([context for context, _ in kwargs["cache_keys"] or ()], sem)
        _under_way.set(call)
        answers = await super().amodel_call(session, call, messages, **kwargs)
        call.ended = perf_counter()
        self._calls.append(call)  # not if it is to be sent again
        return answers

    def parse_generations(self, outputs: Any, **kwargs: Any) -> Any:
        """lm-eval calls this with each reply."""
        replies = outputs if isinstance(outputs, list) else [outputs]
        if (call := _under_way.get(None)) is None:
            call = _Call(kwargs.get("contexts") or ())
            self._calls.append(call)
        if len(replies) == 1:
            call.reply = replies[0]
        return super().parse_generations(outputs=outputs, **kwargs)


def _timed_answer(counts: TurnCounts, call: _Call, is_alone: bool) -> backends.TimedAnswer:
    known: dict[str, Any] = {}
    if call.started is not None and call.ended is not None:
        known["latency_seconds"] = call.ended - call.started
    first = (call.reply.get("metrics") or {}).get("time_to_first_token_ms")
    if is_alone and first is not None and counts.seconds is not None:
        known["prefill_seconds"] = prefill = first / 1000
        known["decode_seconds"] = counts.seconds - prefill
    return reported(call.reply, replace(counts, **known))


def reported(reply: dict[str, Any], counts: TurnCounts) -> backends.TimedAnswer:
    """What a reply reports of its only answer, in the form of OpenAI's servers and of vLLM's."""
    usage, metrics = reply.get("usage") or {}, reply.get("metrics") or {}
    [choice, *_] = reply.get("choices") or [{}]
    num_tokens, reason = usage.get("completion_tokens"), choice.get("finish_reason")
    if reason == "stop" and "stop_reason" not in choice:
        reason = None  # an EOS or a stop string
    drafting = metrics.get("speculative_decoding") or {}  # vLLM's, at its level "detailed"
    drafted = drafting.get("per_step_drafted") or []
    accepted = drafting.get("per_step_accepted") or []
    made: tuple[Attempt, ...] = ()
    if num_tokens is not None:
        # At least the prefill and a forward for each draft; there may be more.
        made = attempts(drafted, accepted, num_tokens, 1 + len(drafted), "unknown")
    known: dict[str, Any] = {
        "num_prompt_tokens": usage.get("prompt_tokens"),
        "num_reused_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        "num_tokens": num_tokens,
        "drafts": backends.counts_by_source(made) or None,
        "finish_reason": backends.finish_reason_from(reason, choice.get("stop_reason")),
    }
    token_ids = choice.get("token_ids")
    ids = None if token_ids is None else tuple(token_ids)
    return backends.TimedAnswer(replace(counts, **known), ids, attempts=made)


@contextmanager
def _without_notices() -> Iterator[None]:
    """Keep lm-eval's API models from showing a bar and a notice for every call."""
    level, bar = api_models.eval_logger.level, api_models.tqdm
    api_models.eval_logger.setLevel(logging.WARNING)
    api_models.tqdm = partial(bar, disable=True)
    api_models.tqdm_asyncio = SimpleNamespace(gather=partial(tqdm_asyncio.gather, disable=True))
    try:
        yield
    finally:
        api_models.eval_logger.setLevel(level)
        api_models.tqdm, api_models.tqdm_asyncio = bar, tqdm_asyncio
