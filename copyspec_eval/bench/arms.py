"""The ways of decoding that are measured side by side, each a function of prompt and budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from transformers import LogitsProcessorList

from copyspec_eval.bench.forced import ForcedModel, Forward
from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.engine import Engine, Request
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.registry import drafter_factory, drafter_kind, longest_draft
from copyspec_eval.types import DraftOptions


@dataclass(frozen=True, slots=True)
class Measured:
    """One answer.

    Attributes:
        token_ids: see above.
        num_forwards: the prefill counted as one.
        num_prefill_tokens: tokens that the prefill gave.
        prefill_seconds, decode_seconds: until the prefill's tokens were chosen, and after.
        forward_seconds: of the decode seconds, those within the model.
    """

    token_ids: tuple[int, ...]
    num_forwards: int
    num_prefill_tokens: int
    prefill_seconds: float
    decode_seconds: float
    forward_seconds: float


Arm = Callable[[Sequence[int], int], Measured]
"""Answers a prompt with exactly so many tokens."""


def stock_arms(model: Any, forced: ForcedModel) -> dict[str, Arm]:
    """transformers' `generate`, greedy and with prompt lookup."""

    def arm(**settings: Any) -> Arm:
        def answer(prompt_ids: Sequence[int], num_tokens: int) -> Measured:
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
            token_ids = output[0, len(prompt_ids) :].tolist()
            return _measured(token_ids, prompt_ids, forced.forwards, started, ended)

        return answer

    return {
        "hf greedy": arm(),
        "hf prompt lookup, n ≤ 2": arm(prompt_lookup_num_tokens=10, max_matching_ngram_size=2),
        "hf prompt lookup, n ≤ 3": arm(prompt_lookup_num_tokens=10, max_matching_ngram_size=3),
    }


def own_arm(
    model: Any,
    forced: ForcedModel,
    options: DraftOptions,
    exact: bool,
    step_costs: dict[int, float],
) -> Arm:
    """A drafter on our engine; `step_costs` count where it goes by them."""
    by_cost = not exact and drafter_kind(options.drafter).num_draft_tokens is None
    engine = Engine(
        model,
        drafter_factory(options),
        num_draft_tokens=longest_draft(options, exact),
        exact=exact,
        step_costs=step_costs if by_cost else None,
    )

    def answer(prompt_ids: Sequence[int], num_tokens: int) -> Measured:
        chooser = TokenChooser(LogitsProcessorList(), do_sample=False)
        forced.forwards.clear()
        [made] = engine.generate([Request(tuple(prompt_ids), StopRule(num_tokens), chooser)])
        steps = [forward for forward in forced.forwards if forward.position >= len(prompt_ids)]
        prefill = [forward for forward in forced.forwards if forward.position < len(prompt_ids)]
        return Measured(
            made.token_ids,
            made.num_forwards,
            made.num_prefill_tokens,
            made.prefill_seconds - _forcing(prefill),
            made.decode_seconds - _forcing(steps),
            sum(step.seconds for step in steps),
        )

    return answer


def _measured(
    token_ids: Sequence[int],
    prompt_ids: Sequence[int],
    forwards: Sequence[Forward],
    started: float,
    ended: float,
) -> Measured:
    """What the forwards tell of an answer by `generate`, whose first one is the prefill."""
    first, *steps = forwards
    # A step begins with the last token that was chosen, so the first tells what the prefill gave.
    decoding = steps[0].started if steps else ended
    given = steps[0].position - len(prompt_ids) + 1 if steps else len(token_ids)
    return Measured(
        tuple(token_ids),
        len(forwards),
        given,
        decoding - started - _forcing([first]),
        ended - decoding - _forcing(steps),
        sum(step.seconds for step in steps),
    )


def _forcing(forwards: Sequence[Forward]) -> float:
    return sum(forward.forcing_seconds for forward in forwards)
