"""Where the time of a decoding step goes: the model's forward, and everything else."""

import itertools
import random
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import torch
from transformers import LogitsProcessorList

from benchmarks.models import QWEN_05B, random_model
from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.copyspec import CopySpecDrafter
from copyspec_eval.drafters.registry import DRAFTERS, DrafterFactory, drafter_factory
from copyspec_eval.types import (
    PAPER_DRAFT_TOKENS,
    PAPER_GAMMA,
    Draft,
    DraftOptions,
    ExactMode,
    Generation,
)

_PROMPT_TOKENS = 600
_WIDEST_STEP = 64
"""A prefill's chunks are wider than that."""


class _ForwardClock:
    """Sums the seconds spent inside the step forwards of a model."""

    def __init__(self, model: Any) -> None:
        self.seconds = 0.0
        self._forward = model.forward
        model.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        started = perf_counter()
        output = self._forward(*args, **kwargs)
        if kwargs["input_ids"].shape[1] <= _WIDEST_STEP:
            self.seconds += perf_counter() - started
        return output


class _AlwaysDrafts(CopySpecDrafter):
    """Drafts at every step: random weights repeat nothing that `copyspec` could copy."""

    def __init__(self) -> None:
        super().__init__(PAPER_GAMMA, PAPER_DRAFT_TOKENS)

    def propose(self, budget: int, longest: int, threshold: float) -> Draft:
        super().propose(budget, longest, threshold)
        return Draft(tuple(range(min(PAPER_DRAFT_TOKENS, budget))))


def profile_steps(num_tokens: int) -> Iterator[dict[str, Any]]:
    """Rows of figures per drafter, mode and batch size, of answers of `num_tokens` tokens.

    A model of the shape of Qwen2.5-0.5B with random weights in bfloat16 answers prompts that repeat
    themselves. `rest_share` is the part of the decode time that is not the model's forward:
    drafting, inputs and masks, argmax, verifying, bookkeeping.
    """
    model = random_model(QWEN_05B, torch.bfloat16)
    clock = _ForwardClock(model)
    source = random.Random(0)
    half = [source.randrange(1000) for _ in range(_PROMPT_TOKENS // 2)]
    makers: dict[str, DrafterFactory] = {
        name: drafter_factory(DraftOptions(name)) for name in DRAFTERS
    }
    makers["always drafts"] = _AlwaysDrafts
    for drafter, exact, batch_size in itertools.product(makers, (True, False), (1, 4)):
        engine = Engine(
            model,
            makers[drafter],
            num_draft_tokens=PAPER_DRAFT_TOKENS,
            exact=ExactMode(16) if exact else None,
            batch_size=batch_size,
        )
        sequences = [
            Sequence(
                half + half,
                StopRule(num_tokens),
                TokenChooser(LogitsProcessorList(), do_sample=False),
            )
            for _ in range(batch_size)
        ]
        clock.seconds = 0.0
        answers = engine.generate(sequences)
        seconds = sum(sequence.decode_seconds for sequence in sequences)
        steps = max(sequence.num_forwards for sequence in sequences) - 1
        yield {
            "drafter": drafter,
            "exact": exact,
            "batch_size": batch_size,
            "drafted_per_step": round(_num_drafted(answers) / steps / batch_size, 2),
            "seconds_per_step": round(seconds / steps, 4),
            "rest_share": round(1 - clock.seconds / seconds, 4),
        }


def _num_drafted(answers: list[Generation]) -> int:
    return sum(attempt.num_drafted for answer in answers for attempt in answer.attempts)
