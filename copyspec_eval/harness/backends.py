"""What stock backends report of their answers beside the text, answering as they always do.

    hf        token ids, forwards (of one row at a time), prefill and decode apart
    vllm      token ids
    servers   token counts (of one row at a time), if the server reports them
    others    nothing, so that there are seconds and no rates

The classes here go in front of a backend's own in a class that inherits from both.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM, CacheHook
from lm_eval.models import api_models

from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.decoding.stopwatch import wait_for
from copyspec_eval.harness.ranks import split_documents_over_ranks
from copyspec_eval.harness.requests import RequestBuilder
from copyspec_eval.types import FinishReason, TurnCounts

_DRAFTING = {"prompt_lookup_num_tokens", "assistant_model"}
"""Settings of `generate` under which it drafts."""


class TimedAnswer(NamedTuple):
    """What a backend reports of an answer, and its tokens where it reports them."""

    counts: TurnCounts
    token_ids: tuple[int, ...] | None = None


class Backend(LM):
    """In front of any backend: the clock covers all that it does, tokenising and network too."""

    def ask(self, group: list[Instance]) -> tuple[list[str], list[TimedAnswer]]:
        """The backend's answers to a batch, and what it reports of each.

        They are kept from lm-eval's cache, which is to get them with their records.
        """
        generate = super().generate_until
        quiet = {"disable_tqdm": True} if _takes(generate, "disable_tqdm") else {}
        cache: CacheHook = self.cache_hook
        self.set_cache_hook(CacheHook(None))
        try:
            started = perf_counter()
            texts: list[str] = generate(group, **quiet)
            seconds = perf_counter() - started
        finally:
            self.set_cache_hook(cache)
        return texts, self.timed_answers(len(group), seconds)

    def timed_answers(self, num_rows: int, seconds: float) -> list[TimedAnswer]:
        """What is reported of the answers just given; `seconds` is what the call took."""
        counts = TurnCounts(seconds=seconds / num_rows, latency_seconds=seconds)
        return [TimedAnswer(counts)] * num_rows

    def length(self, prompt: str) -> int:
        """Of a prompt, as the backend orders its requests."""
        return len(prompt)

    def processors(self, gen_kwargs: dict[str, Any]) -> tuple[str, ...] | None:
        """Names of the logits processors of a request, for the manifest; None if not known."""
        return None


class HFBackend(Backend):
    """In front of one that loads and generates as `hf` does; the clock covers generation alone.

    Tokens behind the end of an answer do not count: those of a row that waits for its batch, and
    those of `prompt_lookup_num_tokens` runs, where `hf` overlooks a stop string that ends inside
    an accepted draft and continues (it cuts the text afterwards, so only time is lost).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        split_documents_over_ranks(self)
        self._builder = RequestBuilder(self)
        self._timed_answers: list[TimedAnswer] = []

    def timed_answers(self, num_rows: int, seconds: float) -> list[TimedAnswer]:
        """What `_model_generate` has seen."""
        return self._timed_answers

    def length(self, prompt: str) -> int:
        """In tokens."""
        return len(self.tok_encode(prompt))

    def processors(self, gen_kwargs: dict[str, Any]) -> tuple[str, ...] | None:
        """As copyspec has them."""
        return self._builder.processors(gen_kwargs)

    def _model_generate(
        self, context: torch.Tensor, max_length: int, stop: list[str], **settings: Any
    ) -> torch.Tensor:
        num_forwards, prefilled = 0, 0.0

        def note(*_: Any) -> None:
            nonlocal num_forwards, prefilled
            num_forwards += 1
            if num_forwards == 1:
                prefilled = self._now()

        hook = self.model.register_forward_hook(note)
        started = self._now()
        try:
            output: torch.Tensor = super()._model_generate(context, max_length, stop, **settings)
        finally:
            hook.remove()
        ended, rows = self._now(), len(context)
        counts = TurnCounts(
            num_forwards=num_forwards if rows == 1 else None,
            # The first forward verifies a draft, too, where there are drafts.
            num_prefill_tokens=None if _DRAFTING & settings.keys() else 1,
            seconds=(ended - started) / rows,
            prefill_seconds=(prefilled - started) / rows,
            decode_seconds=(ended - prefilled) / rows,
            latency_seconds=ended - started,
        )
        # An encoder's context is no part of the output, but a start token for the decoder is.
        start = context.shape[1] if self.backend == "causal" else 1
        eos = settings.get("eos_token_id", self.model.generation_config.eos_token_id)
        rule = self._builder.stop_rule(stop, max_length - start, eos)
        lengths = settings["attention_mask"].sum(dim=1).tolist()
        self._timed_answers = [
            _with_tokens(counts, length, *_useful(token_ids, rule))
            for length, token_ids in zip(lengths, output[:, start:].tolist(), strict=True)
        ]
        return output

    def _now(self) -> float:
        """The time, in seconds, when a GPU has done all that was asked of it."""
        wait_for(self.device)
        return perf_counter()


class VLLMBackend(Backend):
    """In front of `vllm`; the clock covers generation alone."""

    def timed_answers(self, num_rows: int, seconds: float) -> list[TimedAnswer]:
        """As vLLM's request objects report them."""
        timed = super().timed_answers(num_rows, self._seconds)
        return [
            _with_tokens(
                counts,
                len(output.prompt_token_ids),
                output.outputs[0].token_ids,
                _vllm_reason(output.outputs[0]),
            )
            for (counts, _), output in zip(timed, self._outputs, strict=True)
        ]

    def length(self, prompt: str) -> int:
        """In tokens."""
        return len(self.tok_encode(prompt))

    def _model_generate(self, *args: Any, **kwargs: Any) -> list[Any]:
        started = perf_counter()
        outputs: list[Any] = super()._model_generate(*args, **kwargs)
        self._outputs, self._seconds = outputs, perf_counter() - started
        return outputs


class APIBackend(Backend):
    """In front of one that asks a server."""

    def ask(self, group: list[Instance]) -> tuple[list[str], list[TimedAnswer]]:
        """As for any backend."""
        self._usages: list[dict[str, Any]] = []
        with _without_notices():
            return super().ask(group)

    def timed_answers(self, num_rows: int, seconds: float) -> list[TimedAnswer]:
        """With the server's counts, which are those of a whole batch."""
        timed = super().timed_answers(num_rows, seconds)
        if num_rows != 1 or len(self._usages) != 1:
            return timed
        [usage] = self._usages
        prompt, answer = usage.get("prompt_tokens"), usage.get("completion_tokens")
        counts = replace(timed[0].counts, num_prompt_tokens=prompt, num_tokens=answer)
        return [TimedAnswer(counts)]

    def parse_generations(self, outputs: Any, **kwargs: Any) -> Any:
        """The backend's; it is what lm-eval calls with each reply."""
        replies = outputs if isinstance(outputs, list) else [outputs]
        self._usages += [reply.get("usage") or {} for reply in replies]
        return super().parse_generations(outputs=outputs, **kwargs)


def _takes(function: Any, parameter: str) -> bool:
    return parameter in inspect.signature(function).parameters


def _with_tokens(
    counts: TurnCounts,
    num_prompt_tokens: int,
    token_ids: Sequence[int],
    finish_reason: FinishReason | None,
) -> TimedAnswer:
    counts = replace(
        counts,
        num_prompt_tokens=num_prompt_tokens,
        num_tokens=len(token_ids),
        finish_reason=finish_reason,
    )
    return TimedAnswer(counts, tuple(token_ids))


def _useful(token_ids: Sequence[int], rule: StopRule) -> tuple[Sequence[int], FinishReason | None]:
    """The tokens up to the end of the answer, and why it is there; None if they just stop."""
    for length in range(1, len(token_ids) + 1):
        reason = rule.reason(token_ids[:length])
        if reason is not None:
            return token_ids[:length], reason
    return token_ids, None


def _vllm_reason(answer: Any) -> FinishReason | None:
    """vLLM reports "stop" for an EOS as well, and then names no stop string."""
    if answer.finish_reason == "stop":
        return "stop" if isinstance(answer.stop_reason, str) else "eos"
    return "length" if answer.finish_reason == "length" else None


@contextmanager
def _without_notices() -> Iterator[None]:
    """Keep lm-eval's API models from showing a bar and a notice for every single call."""
    level, bar = api_models.eval_logger.level, api_models.tqdm
    api_models.eval_logger.setLevel(logging.WARNING)
    api_models.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        api_models.eval_logger.setLevel(level)
        api_models.tqdm = bar
