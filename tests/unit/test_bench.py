"""The bench on a small model: every way gives the recorded answer, and the figures add up."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from benchmarks import report, side_by_side
from benchmarks.side_by_side import ENGINE_ARMS, answer_all, figures, peak_memory, prepare
from recorded_runs import MADE
from tiny_models import tiny_model

from copyspec_eval.errors import CopySpecError
from copyspec_eval.reports.earlier_runs import Trace

PROMPTS = [tuple(range(2 + start, 22 + start)) for start in (0, 30)]
TRACES = [Trace("x", 2, prompt, (*prompt[:15], 99, 98, *prompt[:10])) for prompt in PROMPTS]


def test_all_ways_give_the_recorded_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "_CONTEXT", 256)
    model = copy.deepcopy(tiny_model("llama"))  # forcing changes it for good
    bench = prepare(model, TRACES)
    answers: dict[str, list[Any]] = {}
    for name, answer in answer_all(bench, TRACES):
        answers.setdefault(name, []).append(answer)
    assert len(answers) == len(ENGINE_ARMS) + 3
    assert {len(by_arm) for by_arm in answers.values()} == {len(TRACES)}
    arms = {name: figures(by_arm, answers["hf greedy"]) for name, by_arm in answers.items()}
    assert {arms[name]["tokens_per_forward"] for name in ("hf greedy", "none")} == {1}
    assert arms["hf greedy"]["decode_speedup_over_hf_greedy"] == 1
    assert arms["suffix"]["tokens_per_forward"] > 2
    assert all(0 <= by_arm["outside_forward"] < 1 for by_arm in arms.values())

    peaks = peak_memory(model, bench, TRACES)
    assert all(size > 10**8 for size in peaks.values())
    config = {"dtype": "bfloat16", "device": "cpu", "threads": 2}
    result = {
        "arms": {name: arms[name] | {"peak_bytes": peaks[name]} for name in arms},
        "traces": {"file": "F", "turn": 2, "count": 2},
        "manifest": {"command": "bench --traces F", "config": config, **MADE},
    }
    text = report.render(result)
    assert "2 answers of turn 2 in F, 54 tokens" in text
    assert "bfloat16, batch 1; P, 2 threads; torch 2; 2026-01-02" in text
    assert text.count("\n|") == 2 + len(arms)

    other = replace(TRACES[0], answer_ids=(*TRACES[0].answer_ids[:-1], 50))
    with pytest.raises(CopySpecError, match="another answer than trace 0"):
        list(answer_all(bench, [other]))
