"""What is timed and counted of lm-eval models that load and generate as `hf` does."""

import os
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.decoding.stopwatch import wait_for
from copyspec_eval.errors import OptionError
from copyspec_eval.harness.backends import Backend, TimedAnswer, with_tokens
from copyspec_eval.harness.requests import RequestBuilder
from copyspec_eval.types import FinishReason, TurnCounts

# Settings of `generate` under which it drafts.
_DRAFTING = {"prompt_lookup_num_tokens", "assistant_model"}


class HFBackend(Backend):
    """The clock covers generation alone.

    Tokens after an answer's end do not count: those of a row that waits for its batch, and those
    that follow a stop string within an accepted draft, which `hf` overlooks.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        split_documents_over_ranks(self)
        self._builder = RequestBuilder(self)
        self._timed_answers: list[TimedAnswer] = []

    def timed_answers(self, group: list[Instance], seconds: float) -> list[TimedAnswer]:
        return self._timed_answers

    def length(self, prompt: str) -> int:
        return len(self.tok_encode(prompt))

    def processors(self, gen_kwargs: dict[str, Any]) -> list[str] | None:
        return self._builder.processor_names(gen_kwargs)

    def _model_generate(
        self, context: torch.Tensor, max_length: int, stop: list[str], **settings: Any
    ) -> torch.Tensor:
        forwards: list[float] = []  # when the first one ended, then zeros
        hook = self.model.register_forward_hook(
            lambda *_: forwards.append(0.0 if forwards else self._now())
        )
        started, rows = self._now(), len(context)
        with hook:
            output: torch.Tensor = super()._model_generate(context, max_length, stop, **settings)
        ended = self._now()
        counts = TurnCounts(
            num_forwards=len(forwards) if rows == 1 else None,
            # With drafts, the first forward verifies one.
            num_prefill_tokens=None if _DRAFTING & settings.keys() else 1,
            seconds=(ended - started) / rows,
            prefill_seconds=(forwards[0] - started) / rows,
            decode_seconds=(ended - forwards[0]) / rows,
            latency_seconds=ended - started,
        )
        # An encoder's output has a start token for the decoder, but not the context.
        start = context.shape[1] if self.backend == "causal" else 1
        eos = settings.get("eos_token_id", self.model.generation_config.eos_token_id)
        rule = self._builder.stop_rule(max_length - start, eos, stop)
        lengths = settings["attention_mask"].sum(dim=1).tolist()
        self._timed_answers = [
            with_tokens(counts, length, *_useful(token_ids, rule))
            for length, token_ids in zip(lengths, output[:, start:].tolist(), strict=True)
        ]
        return output

    def _now(self) -> float:
        wait_for(self.device)
        return perf_counter()


def split_documents_over_ranks(lm: HFLM) -> None:
    """Make every launched process a rank; `hf` does so on several GPUs only, and per machine."""
    accelerator = getattr(lm, "accelerator", None)
    launched = int(os.environ.get("WORLD_SIZE") or 1)
    # A model that is loaded already may be evaluated by one rank of a training run.
    if accelerator is None and launched > 1 and isinstance(lm.pretrained, str):
        raise OptionError(
            f"WORLD_SIZE={launched}, but accelerate sees one process, so each would answer all "
            "documents; without GPUs set ACCELERATE_USE_CPU=true, or unset WORLD_SIZE for a run of "
            "this process alone"
        )
    if accelerator is not None and accelerator.num_processes > 1:
        lm._rank = accelerator.process_index
        lm._world_size = accelerator.num_processes


def _useful(token_ids: Sequence[int], rule: StopRule) -> tuple[Sequence[int], FinishReason | None]:
    """The tokens up to the end of the answer, and why it is there; None if they just stop."""
    for length in range(1, len(token_ids) + 1):
        if reason := rule.reason(token_ids[:length]):
            return token_ids[:length], reason
    return token_ids, None
