"""The speed-up that a paired run reports is the one that its forwards and their costs explain."""

import statistics
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch
from benchmarks.forced import ForcedModel
from benchmarks.models import QWEN_05B, random_model
from transformers import LogitsProcessorList

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.paired import PairedAnswer, PairedEngine
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.reports.earlier_runs import Trace, read_traces
from copyspec_eval.types import DraftOptions, ExactMode, Generation

TRACES = 6


class StepCosts:
    """Seconds of a model's forwards by width, taken in use, so that drift hits all alike."""

    def __init__(self, model: Any) -> None:
        self.real, model.forward = model.forward, self.forward
        self.seconds: dict[int, list[float]] = {}

    def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        started = perf_counter()
        output = self.real(input_ids=input_ids, **kwargs)
        self.seconds.setdefault(input_ids.shape[1], []).append(perf_counter() - started)
        return output

    def cost(self, width: int) -> float:
        return statistics.median(self.seconds[width])


def num_steps(answer: Generation) -> int:
    assert answer.counts.num_forwards
    return answer.counts.num_forwards - 1


def widths_of(answer: Generation) -> list[int]:
    """Width of every step of an answer that was decoded as wide as its drafts."""
    drafted = [1 + attempt.num_drafted for attempt in answer.attempts]
    return drafted + [1] * (num_steps(answer) - len(drafted))


@pytest.fixture(scope="module")
def traces(data_dir: Path) -> list[Trace]:
    """Real second turns, short enough for a test."""
    actual = [
        trace
        for trace in read_traces(data_dir / "traces" / "mt_redundant__qwen2.5-7b.jsonl")
        if trace.turn == 2 and len(trace.prompt_ids) < 700 and 60 < len(trace.answer_ids) < 150
    ]
    assert len(actual) >= TRACES
    return actual[:TRACES]


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
def test_speedup_is_forwards_saved_times_their_cost(traces, exact):
    model = random_model(QWEN_05B, torch.bfloat16)
    ForcedModel(model, [(*trace.prompt_ids, *trace.answer_ids) for trace in traces])
    drafter = drafter_factory(DraftOptions())
    engine = Engine(model, drafter, num_draft_tokens=10, exact=ExactMode(16) if exact else None)
    paired = PairedEngine(model, [engine])
    sequences = [
        Sequence(
            trace.prompt_ids,
            StopRule(len(trace.answer_ids)),
            TokenChooser(LogitsProcessorList(), do_sample=False),
        )
        for trace in traces
    ]
    drafted: list[Generation] = []
    plain: list[Generation] = []

    def finish(index: int, answers: list[PairedAnswer]) -> None:
        [answer] = answers
        assert answer.generation.token_ids == traces[index].answer_ids
        assert answer.difference is None
        drafted.append(answer.generation)
        plain.append(answer.baseline)

    paired.warm_up(sequences[0])
    costs = StepCosts(model)
    paired.generate(sequences, finish)
    ratios = []
    for answer, baseline in zip(drafted, plain, strict=True):
        widths = [16] * num_steps(answer) if exact else widths_of(answer)
        expected = (
            num_steps(baseline) * costs.cost(16 if exact else 1) / sum(map(costs.cost, widths))
        )
        seconds = [one.counts.decode_seconds for one in (baseline, answer)]
        measured = float(seconds[0] or 0) / float(seconds[1] or 0)
        ratios.append(measured / expected)
        print(f"exact={exact} measured {measured:.3f} expected {expected:.3f}")
    # The median, since whatever else the machine does comes in bursts.
    assert statistics.median(ratios) == pytest.approx(1, rel=0.10)
    if not exact:
        assert measured > 1.1
