"""The speed-up that a paired run reports is the one that its forwards and their costs explain."""

import statistics
from collections import defaultdict
from time import perf_counter
from typing import Any

import pytest
import torch
from asking import asked, engine
from benchmarks.forced import ForcedModel
from benchmarks.models import QWEN_05B, random_model

from copyspec_eval.pairs.paired import PairedAnswer, PairedEngine
from copyspec_eval.reports.earlier_runs import read_traces
from copyspec_eval.types import DraftOptions, ExactMode, Generation


def step_seconds(model: Any) -> dict[int, list[float]]:
    """Those of a model's forwards by width, taken in use, so that drift hits all alike."""
    forward, seconds = model.forward, defaultdict[int, list[float]](list)

    def timed(input_ids: torch.Tensor, **kwargs: Any) -> Any:
        started = perf_counter()
        output = forward(input_ids=input_ids, **kwargs)
        seconds[input_ids.shape[1]].append(perf_counter() - started)
        return output

    model.forward = timed
    return seconds


def widths_of(answer: Generation, exact: bool) -> list[int]:
    """Width of every step of an answer."""
    num_steps = (answer.counts.num_forwards or 0) - 1
    assert num_steps > 0
    drafted = [1 + attempt.num_drafted for attempt in answer.attempts]
    return [16] * num_steps if exact else drafted + [1] * (num_steps - len(drafted))


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
def test_speedup_is_forwards_saved_times_their_cost(data_dir, exact):
    traces = [  # real second turns, short enough for a test
        trace
        for trace in read_traces(data_dir / "traces" / "mt_redundant__qwen2.5-7b.jsonl")
        if trace.turn == 2 and len(trace.prompt_ids) < 700 and 60 < len(trace.answer_ids) < 150
    ][:6]
    assert len(traces) == 6
    model = random_model(QWEN_05B, torch.bfloat16)
    ForcedModel(model, [(*trace.prompt_ids, *trace.answer_ids) for trace in traces])
    drafting = engine(model, DraftOptions(), ExactMode(16) if exact else None)
    paired = PairedEngine(model, [drafting])
    sequences = [
        each for trace in traces for each in asked([trace.prompt_ids], len(trace.answer_ids))
    ]
    answers: list[PairedAnswer] = []
    paired.warm_up(sequences[0])
    by_width = step_seconds(model)
    paired.generate(sequences, lambda _, of_arms: answers.extend(of_arms))
    costs = {width: statistics.median(seconds) for width, seconds in by_width.items()}

    def overhead(answer: Generation) -> float:
        """Its seconds by those of its forwards."""
        widths = widths_of(answer, exact)
        return (answer.counts.decode_seconds or 0) / sum(costs[width] for width in widths)

    assert not any(answer.difference for answer in answers)
    ratios = [overhead(answer.baseline) / overhead(answer.generation) for answer in answers]
    # The median, since whatever else the machine does comes in bursts.
    assert statistics.median(ratios) == pytest.approx(1, rel=0.10)
