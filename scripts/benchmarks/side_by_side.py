"""All ways of decoding on the same recorded answers, in turn, and their figures."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.arms import Arm, BenchAnswer, engine_arm, transformers_arms
from benchmarks.forced import ForcedModel
from benchmarks.memory import PeakMemory
from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.exactness import mismatches
from copyspec_eval.drafters.registry import LONGEST_DRAFT
from copyspec_eval.errors import CopySpecError
from copyspec_eval.reports.earlier_runs import Trace
from copyspec_eval.types import DraftOptions, ExactMode

_WARM_UP_TOKENS = 8
_CONTEXT, _CONTEXT_ANSWER = 4096, 64

ENGINE_ARMS = {
    "none": (DraftOptions("none"), False),
    "copyspec": (DraftOptions("copyspec"), False),
    "suffix": (DraftOptions("suffix"), False),
    "suffix, tree": (DraftOptions("suffix", tree=True), False),
    "suffix, store": (DraftOptions("suffix", store=True), False),
    "suffix, tree, store": (DraftOptions("suffix", tree=True, store=True), False),
    "none, exact": (DraftOptions("none"), True),
    "suffix, exact": (DraftOptions("suffix"), True),
}
"""The arms of our engine by name: how they draft, and whether in exact mode."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Arms that answer traces, by name, and the exact mode of those that have one."""

    arms: Mapping[str, Arm]
    exact: ExactMode


def prepare(model: Any, traces: Sequence[Trace]) -> Bench:
    """Force `model` to the traces' answers, and warm every arm up."""
    recorded = [(*trace.prompt_ids, *trace.answer_ids) for trace in traces]
    # Before its answers are forced: forced logits would agree at every width.
    differs = any(mismatches(model, recorded[0], ExactMode(), LONGEST_DRAFT, batch_size=1))
    mode = ExactMode(16 if differs or not kernels.serve(model) else None)
    forced = ForcedModel(model, [*recorded, _long_context(traces)])
    arms = transformers_arms(model, forced)
    for name, (options, exact) in ENGINE_ARMS.items():
        arms[name] = engine_arm(model, forced, options, mode if exact else None)
    for arm in arms.values():
        arm(traces[0].prompt_ids, min(_WARM_UP_TOKENS, len(traces[0].answer_ids)))
    return Bench(arms, mode)


def answer_all(bench: Bench, traces: Sequence[Trace]) -> Iterator[tuple[str, BenchAnswer]]:
    """Each trace by every arm in turn; which one goes first changes with every trace.

    Raises:
        CopySpecError: an arm gave another answer.
    """
    names = list(bench.arms)
    for index, trace in enumerate(traces):
        for name in names[index % len(names) :] + names[: index % len(names)]:
            answer = bench.arms[name](trace.prompt_ids, len(trace.answer_ids))
            if answer.token_ids != trace.answer_ids:
                raise CopySpecError(f"{name} gave another answer than trace {index} has")
            yield name, answer


def peak_memory(model: Any, bench: Bench, traces: Sequence[Trace]) -> dict[str, int]:
    """Peak bytes of the process during each arm, at the end of a context of 4,096 tokens.

    All of them include what stays between arms: the model, and the packed weights of our own.
    """
    context = _long_context(traces)
    prompt_ids = context[: len(context) - _CONTEXT_ANSWER]
    peaks = {}
    for name, arm in bench.arms.items():
        memory = PeakMemory(torch.device(model.device))
        arm(prompt_ids, len(context) - len(prompt_ids))
        peaks[name] = memory.num_bytes
    return peaks


def figures(answers: Sequence[BenchAnswer], greedy: Sequence[BenchAnswer]) -> dict[str, float]:
    """An arm's figures; the speed-up is over the answers `greedy` of `generate` without drafts."""
    num_tokens, decode_seconds = _total(answers, "num_tokens"), _total(answers, "decode_seconds")
    prefill_seconds = _total(answers, "prefill_seconds")
    decode_rate = _decode_rate(answers)
    return {
        "tokens": num_tokens,
        "tokens_per_forward": num_tokens / _total(answers, "num_forwards"),
        "prefill_seconds": prefill_seconds,
        "decode_tokens_per_second": decode_rate,
        "decode_speedup_over_hf_greedy": decode_rate / _decode_rate(greedy),
        "tokens_per_second": num_tokens / _total(answers, "seconds"),
        "outside_forward": 1 - sum(answer.forward_seconds for answer in answers) / decode_seconds,
    }


def _decode_rate(answers: Sequence[BenchAnswer]) -> float:
    num_decoded = _total(answers, "num_tokens") - _total(answers, "num_prefill_tokens")
    rate: float = num_decoded / _total(answers, "decode_seconds")
    return rate


def _total(answers: Sequence[BenchAnswer], count: str) -> Any:
    return sum(getattr(answer.counts, count) for answer in answers)


def _long_context(traces: Sequence[Trace]) -> tuple[int, ...]:
    """All traces in a row, repeated and cut to 4,096 tokens."""
    token_ids = [token for trace in traces for token in (*trace.prompt_ids, *trace.answer_ids)]
    repeated = token_ids * (-(-_CONTEXT // len(token_ids)))
    return tuple(repeated[-_CONTEXT:])
