"""The random cases of scripts/fuzz: they hold, come again, and see a decoder that is broken."""

import re
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from doubles import one_wrong_in
from fuzzing import models
from fuzzing.campaign import Totals, findings
from fuzzing.cases import Range, draw
from fuzzing.checking import Finding
from fuzzing.models import LIKENESSES, ModelName, model_of

from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.model_cache import ModelCacheRunner
from copyspec_eval.drafters.registry import DRAFTERS
from copyspec_eval.types import Draft, Verdict

FEW = Range(
    models=(ModelName("llama", "float32", True), ModelName("gpt2", "bfloat16", False)),
    batch_sizes=(1, 3),
)
OWN = Range(
    models=(ModelName("bloom", "float64", False), ModelName("olmo_hybrid", "float64", False))
)
SEED = 0
CASES = 30
MOST = 40
"""Within how many cases a defect has to be found."""


def first_failure(cases: Range = FEW) -> Finding | None:
    actual = findings(SEED, range(MOST), cases)
    return next((finding for finding in actual if finding.failures), None)


def test_some_cases_hold() -> None:
    totals = Totals()
    for finding in findings(SEED, range(CASES), FEW):
        assert not finding.failures, f"{finding} | {finding.case}"
        totals.add(finding)
    assert str(draw(SEED, 17, FEW)) == str(draw(SEED, 17, FEW)) != str(draw(SEED, 18, FEW))
    summed = totals.as_json()
    assert summed["cases"] == CASES
    assert {"inexact", "fixed width"} <= summed["by_mode"].keys()
    assert kernels.is_available(torch.float32) == ("invariant" in summed["by_mode"])
    assert summed["identical"] + summed["near_tie"] == summed["turns"] > CASES
    assert summed["tokens"] > summed["accepted"] > 0
    assert summed["equal_logits"] > 0
    assert kernels.is_available(torch.float32) == bool(summed["alone"])


def test_cases_of_a_models_model_cache_hold() -> None:
    actual = list(findings(SEED, range(12), OWN))
    assert [str(finding) for finding in actual if finding.failures] == []
    assert {finding.mode for finding in actual} == {"model"}
    assert sum(finding.num_accepted for finding in actual) > 0


def forget(self: ModelCacheRunner, _: Any, start: int, draft: Draft, verdict: Verdict) -> None:
    self._cache.num_read -= len(draft.token_ids) - verdict.num_accepted


@pytest.mark.parametrize(
    ("target", "defect", "cases", "matches"),
    [
        ("model_cache.ModelCacheRunner.accept", forget, OWN, "diverged"),
        ("sequence.verify", one_wrong_in(50), FEW, f"seed={SEED} case="),
        ("row_runner.RowRunner.can_draft", lambda self, sequence: True, FEW, r"(invariant|fixed)"),
    ],
    ids=["a state that is not restored", "a wrong token let through", "a draft in the prefill"],
)
def test_a_defect_is_found(
    target: str, defect: Any, cases: Range, matches: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"copyspec_eval.decoding.{target}", defect)
    actual = first_failure(cases)
    assert actual is not None
    assert re.search(matches, f"{actual.mode} {actual}")


def test_other_bits_in_a_row_of_some_steps_are_found() -> None:
    def other_bits(module: Any, inputs: Any, logits: torch.Tensor) -> torch.Tensor:
        if logits.shape[1] > 4:
            logits = logits.clone()
            bits = torch.int32 if logits.dtype == torch.float32 else torch.int16
            logits.view(bits)[:, 0] ^= 1
        return logits

    assert first_failure() is None, "the steps are measured before"
    with ExitStack() as hooks:
        for name in FEW.models:
            hooks.enter_context(model_of(name).lm_head.register_forward_hook(other_bits))
        actual = first_failure()
    assert actual is not None
    assert re.search("(invariant|fixed width).*(other logits|tokens)", f"{actual.mode} {actual}")


def test_cases_reach_every_drafter_and_model() -> None:
    cases = [draw(SEED, number) for number in range(400)]
    assert {case.options.drafter for case in cases} == set(DRAFTERS)
    assert {case.options.draft_model for case in cases} == {None, *LIKENESSES}
    assert {case.model for case in cases} == set(models.ALL_MODELS)
    assert {case.exact for case in cases if case.options.tree or case.double == "tree"} == {None}
