"""The bench on a small model: every way gives the recorded answer, and the figures add up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tiny_models import tiny_model

from copyspec_eval.bench import comparison
from copyspec_eval.bench.comparison import OWN, Bench, answer_all, figures, peak_memory, prepare
from copyspec_eval.decoding.replay import Trace
from copyspec_eval.errors import CopySpecError
from copyspec_eval.reports import benchmark


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    """Answers that repeat their prompt, and go on in another way."""
    prompts = [tuple(range(2 + start, 22 + start)) for start in (0, 30)]
    return [Trace("x", 2, prompt, (*prompt[:15], 99, 98, *prompt[:10])) for prompt in prompts]


@pytest.fixture
def model() -> Any:
    return tiny_model("llama")


@pytest.fixture
def bench(model: Any, traces: list[Trace], monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(comparison, "_CONTEXT", 256)
    return prepare(model, traces)


def test_all_ways_give_the_recorded_answer(model: Any, bench: Bench, traces: list[Trace]) -> None:
    made: dict[str, list[Any]] = {}
    for name, answer in answer_all(bench, traces):
        made.setdefault(name, []).append(answer)
    assert len(made) == len(OWN) + 3
    assert {len(answers) for answers in made.values()} == {len(traces)}
    found = {name: figures(answers, made["hf greedy"]) for name, answers in made.items()}
    for name in ("hf greedy", "none"):
        assert found[name]["tokens_per_forward"] == 1
    assert found["hf greedy"]["decode_speedup_over_hf_greedy"] == 1
    assert found["suffix"]["tokens_per_forward"] > 2
    assert all(0 <= of_arm["outside_forward"] < 1 for of_arm in found.values())

    peaks = peak_memory(model, bench, traces)
    assert all(size > 10**8 for size in peaks.values())
    result = {
        "arms": {name: found[name] | {"peak_bytes": peaks[name]} for name in found},
        "traces": {"file": "F", "turn": 2, "count": 2},
        "manifest": {
            "started_at": "2026-01-02T03:04",
            "command": "bench --traces F",
            "config": {"dtype": "bfloat16", "device": "cpu", "threads": 2},
            "versions": {"torch": "2"},
            "hardware": {"processor": "P", "accelerators": []},
        },
    }
    text = benchmark.render(result)
    assert "2 answers of turn 2 in F, 54 tokens" in text
    assert "bfloat16, batch 1; P, 2 threads; torch 2; 2026-01-02" in text
    assert text.count("\n|") == 2 + len(found)


def test_another_answer_stops_the_bench(bench: Bench, traces: list[Trace]) -> None:
    other = replace(traces[0], answer_ids=(*traces[0].answer_ids[:-1], 50))
    with pytest.raises(CopySpecError, match="another answer than trace 0"):
        list(answer_all(bench, [other]))
