"""The bench on a small model: every way gives the recorded answer, and the figures add up."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from benchmarks import one_token_step, report, side_by_side
from benchmarks.side_by_side import (
    ENGINE_ARMS,
    Bench,
    answer_all,
    figures,
    peak_memory,
    prepare,
)
from tiny_models import tiny_model

from copyspec_eval.decoding.replay import Trace
from copyspec_eval.errors import CopySpecError

STEP = {
    "weight_bytes": 1_500_000_000,
    "copy_seconds": 0.04,
    "step_seconds": {"none": 0.04, "none, compile": 0.025},
    "choice_seconds": {"repetition penalty 1.1": 0.0005},
}


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    """Answers that repeat their prompt, and then diverge from it."""
    prompts = [tuple(range(2 + start, 22 + start)) for start in (0, 30)]
    return [Trace("x", 2, prompt, (*prompt[:15], 99, 98, *prompt[:10])) for prompt in prompts]


@pytest.fixture
def model() -> Any:
    return copy.deepcopy(tiny_model("llama"))  # forcing changes it for good


@pytest.fixture
def bench(model: Any, traces: list[Trace], monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(side_by_side, "_CONTEXT", 256)
    return prepare(model, traces)


def test_all_ways_give_the_recorded_answer(model: Any, bench: Bench, traces: list[Trace]) -> None:
    answers: dict[str, list[Any]] = {}
    for name, answer in answer_all(bench, traces):
        answers.setdefault(name, []).append(answer)
    assert len(answers) == len(ENGINE_ARMS) + 3
    assert {len(of_arm) for of_arm in answers.values()} == {len(traces)}
    arms = {name: figures(of_arm, answers["hf greedy"]) for name, of_arm in answers.items()}
    for name in ("hf greedy", "none"):
        assert arms[name]["tokens_per_forward"] == 1
    assert arms["hf greedy"]["decode_speedup_over_hf_greedy"] == 1
    assert arms["suffix"]["tokens_per_forward"] > 2
    assert all(0 <= of_arm["outside_forward"] < 1 for of_arm in arms.values())

    peaks = peak_memory(model, bench, traces)
    assert all(size > 10**8 for size in peaks.values())
    result = {
        "arms": {name: arms[name] | {"peak_bytes": peaks[name]} for name in arms},
        "traces": {"file": "F", "turn": 2, "count": 2},
        "one_token_step": STEP,
        "manifest": {
            "started_at": "2026-01-02T03:04",
            "command": "bench --traces F",
            "config": {"dtype": "bfloat16", "device": "cpu", "threads": 2},
            "versions": {"torch": "2"},
            "hardware": {"processor": "P", "accelerators": []},
        },
    }
    text = report.render(result)
    assert "2 answers of turn 2 in F, 54 tokens" in text
    assert "bfloat16, batch 1; P, 2 threads; torch 2; 2026-01-02" in text
    assert text.count("\n|") == 2 + len(arms)


def test_another_answer_stops_the_bench(bench: Bench, traces: list[Trace]) -> None:
    other = replace(traces[0], answer_ids=(*traces[0].answer_ids[:-1], 50))
    with pytest.raises(CopySpecError, match="another answer than trace 0"):
        list(answer_all(bench, [other]))


def test_a_step_is_set_beside_the_reading_of_its_weights() -> None:
    """A copy reads and writes: reading alone takes half of its 40 ms; 5 of 25 ms are no reading."""
    text = one_token_step.render(STEP)
    assert "`none` 40.0 ms, of which 50% is not reading" in text
    assert "`none, compile` 25.0 ms, of which 20% is not reading" in text
    assert "Reading 1.500 GB of weights takes 20.0 ms" in text
    assert "repetition penalty 1.1 0.50 ms, 2.0%" in text


def test_the_steps_of_a_model_are_measured(model: Any, our_kernels: None) -> None:
    figures = one_token_step.measure(model, rounds=2)
    assert figures["weight_bytes"] == sum(weight.nbytes for weight in model.parameters())
    assert {*figures["step_seconds"]} == {"none", "none, compile"}
    every = [figures["copy_seconds"], *figures["step_seconds"].values()]
    assert all(seconds > 0 for seconds in [*every, *figures["choice_seconds"].values()])
    assert "none, compile" in one_token_step.render(figures)
