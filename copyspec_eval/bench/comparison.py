"""All ways of decoding on the same recorded answers, in turn, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from copyspec_eval.bench.arms import Arm, Measured, own_arm, stock_arms
from copyspec_eval.bench.forced import ForcedModel
from copyspec_eval.bench.memory import PeakMemory
from copyspec_eval.decoding.replay import Trace
from copyspec_eval.decoding.step_costs import measure_step_costs
from copyspec_eval.errors import CopySpecError
from copyspec_eval.types import DraftOptions

_WARM_UP_TOKENS = 8
_CONTEXT, _CONTEXT_ANSWER = 4096, 64

OWN = {
    "none": (DraftOptions("none"), False),
    "copyspec": (DraftOptions("copyspec"), False),
    "suffix": (DraftOptions("suffix"), False),
    "suffix, tree": (DraftOptions("suffix", tree=True), False),
    "suffix, store": (DraftOptions("suffix", store=True), False),
    "suffix, tree, store": (DraftOptions("suffix", tree=True, store=True), False),
    "suffix, exact": (DraftOptions("suffix"), True),
}
"""Our arms by name: how they draft, and whether in exact mode."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Arms that answer traces, and what a step costs.

    Attributes:
        arms: by name.
        step_costs: seconds of a step by its number of draft tokens.
    """

    arms: Mapping[str, Arm]
    step_costs: dict[int, float]


def prepare(model: Any, traces: Sequence[Trace]) -> Bench:
    """Make `model` give the traces' answers, and every arm warm."""
    texts = [(*trace.prompt_ids, *trace.answer_ids) for trace in traces]
    context = _long_context(traces)
    forced = ForcedModel(model, [*texts, context])
    step_costs = measure_step_costs(model, batch_size=1, num_draft_tokens=96)
    arms = stock_arms(model, forced)
    for name, (options, exact) in OWN.items():
        arms[name] = own_arm(model, forced, options, exact, step_costs)
    for arm in arms.values():
        arm(traces[0].prompt_ids, min(_WARM_UP_TOKENS, len(traces[0].answer_ids)))
    return Bench(arms, step_costs)


def answer_all(bench: Bench, traces: Sequence[Trace]) -> Iterator[tuple[str, Measured]]:
    """Each trace by every arm in turn; which one goes first changes with every trace.

    Raises:
        CopySpecError: an arm gave another answer.
    """
    names = list(bench.arms)
    for index, trace in enumerate(traces):
        for name in names[index % len(names) :] + names[: index % len(names)]:
            made = bench.arms[name](trace.prompt_ids, len(trace.answer_ids))
            if made.token_ids != trace.answer_ids:
                raise CopySpecError(f"{name} gave another answer than trace {index} has")
            yield name, made


def peak_memory(model: Any, bench: Bench, traces: Sequence[Trace]) -> dict[str, int]:
    """Bytes of the process at the most during each arm, at the end of a context of 4,096 tokens.

    What stays between arms is in all of them: the model, and the packed weights of our own.
    """
    context = _long_context(traces)
    prompt_ids = context[: len(context) - _CONTEXT_ANSWER]
    peaks = {}
    for name, arm in bench.arms.items():
        memory = PeakMemory(torch.device(model.device))
        arm(prompt_ids, len(context) - len(prompt_ids))
        peaks[name] = memory.num_bytes
    return peaks


def figures(made: Sequence[Measured], greedy: Sequence[Measured]) -> dict[str, float]:
    """What an arm's answers come to, beside those of `generate` without drafts."""
    decoded = _decode_rate(made)
    return {
        "tokens": sum(len(one.token_ids) for one in made),
        "tokens_per_forward": sum(len(one.token_ids) for one in made)
        / sum(one.num_forwards for one in made),
        "prefill_seconds": sum(one.prefill_seconds for one in made),
        "decode_tokens_per_second": decoded,
        "decode_speedup_over_hf_greedy": decoded / _decode_rate(greedy),
        "tokens_per_second": sum(len(one.token_ids) for one in made)
        / sum(one.prefill_seconds + one.decode_seconds for one in made),
        "outside_forward": 1
        - sum(one.forward_seconds for one in made) / sum(one.decode_seconds for one in made),
    }


def _decode_rate(made: Sequence[Measured]) -> float:
    decoded = sum(len(one.token_ids) - one.num_prefill_tokens for one in made)
    return decoded / sum(one.decode_seconds for one in made)


def _long_context(traces: Sequence[Trace]) -> tuple[int, ...]:
    """The traces one behind the other, and again, up to 4,096 tokens."""
    texts = [token for trace in traces for token in (*trace.prompt_ids, *trace.answer_ids)]
    repeated = texts * (-(-_CONTEXT // len(texts)))
    return tuple(repeated[-_CONTEXT:])
