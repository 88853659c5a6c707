"""The ways of decoding that are measured side by side, each a function of prompt and budget."""

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch
from transformers import LogitsProcessorList

from benchmarks.forced import ForcedModel, Forward
from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.registry import drafter_factory, drafter_kind, longest_draft
from copyspec_eval.drafters.thresholds import StepClock
from copyspec_eval.types import DraftOptions, ExactMode, TurnCounts


@dataclass(frozen=True, slots=True)
class BenchAnswer:
    """One answer.

    Attributes:
        token_ids: the answer's.
        counts: what it took, without the seconds of forcing.
        forward_seconds: of the decode seconds, those within the model.
    """

    token_ids: tuple[int, ...]
    counts: TurnCounts
    forward_seconds: float


Arm = Callable[[abc.Sequence[int], int], BenchAnswer]
"""Answers a prompt with exactly that many tokens."""


def transformers_arms(model: Any, forced: ForcedModel) -> dict[str, Arm]:
    """transformers' `generate`, greedy and with prompt lookup."""

    def arm(**settings: Any) -> Arm:
        def answer(prompt_ids: abc.Sequence[int], num_tokens: int) -> BenchAnswer:
            ids = torch.tensor([prompt_ids], device=model.device)
            forced.forwards.clear()
            started = perf_counter()
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=num_tokens,
                pad_token_id=0,
                **settings,
            )
            ended = perf_counter()
            token_ids = tuple(output[0, len(prompt_ids) :].tolist())
            # A step begins with the last token that was chosen: the first one shows the prefill's.
            steps = forced.forwards[1:]
            prefilled = steps[0].started if steps else ended
            num_read = steps[0].position + 1 if steps else output.shape[1]
            counts = TurnCounts(
                num_prompt_tokens=len(prompt_ids),
                num_tokens=len(token_ids),
                num_forwards=len(forced.forwards),
                num_prefill_tokens=num_read - len(prompt_ids),
                prefill_seconds=prefilled - started,
                decode_seconds=ended - prefilled,
            )
            return _without_forcing(token_ids, counts, forced.forwards)

        return answer

    return {
        "hf greedy": arm(),
        "hf prompt lookup, n ≤ 2": arm(prompt_lookup_num_tokens=10, max_matching_ngram_size=2),
        "hf prompt lookup, n ≤ 3": arm(prompt_lookup_num_tokens=10, max_matching_ngram_size=3),
    }


def engine_arm(
    model: Any, forced: ForcedModel, options: DraftOptions, exact: ExactMode | None
) -> Arm:
    """A drafter on our engine, which learns its steps' costs where the drafter asks."""
    by_cost = drafter_kind(options.drafter).num_draft_tokens is None
    longest = longest_draft(options)
    most = exact.num_draft_tokens if exact else None
    engine = Engine(
        model,
        drafter_factory(options),
        num_draft_tokens=longest if most is None else min(longest, most),
        exact=exact,
        step_clock=StepClock() if by_cost else None,
    )

    def answer(prompt_ids: abc.Sequence[int], num_tokens: int) -> BenchAnswer:
        chooser = TokenChooser(LogitsProcessorList(), do_sample=False)
        forced.forwards.clear()
        [made] = engine.generate([Sequence(prompt_ids, StopRule(num_tokens), chooser)])
        return _without_forcing(made.token_ids, made.counts, forced.forwards)

    return answer


def _without_forcing(
    token_ids: tuple[int, ...], counts: TurnCounts, forwards: abc.Sequence[Forward]
) -> BenchAnswer:
    """The answer, with the seconds of forcing taken off those in `counts`."""
    prefill, decode = counts.prefill_seconds or 0.0, counts.decode_seconds or 0.0
    forward_seconds = 0.0
    for forward in forwards:
        if forward.position < (counts.num_prompt_tokens or 0):
            prefill -= forward.forcing_seconds
        else:
            decode -= forward.forcing_seconds
            forward_seconds += forward.seconds
    counts = replace(
        counts, seconds=prefill + decode, prefill_seconds=prefill, decode_seconds=decode
    )
    return BenchAnswer(token_ids, counts, forward_seconds)
