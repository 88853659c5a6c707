"""Whether rounding explains a difference: near-ties are told from defects, however small."""

import functools
from typing import Any

import pytest
import torch
from asking import asked as sequences_of
from asking import greedy
from changed_steps import change_wide_steps
from paired_answers import BUDGET, copying, engine_of, pairs_of, plain_of
from tiny_models import ARCHITECTURES, VOCABULARY, prompts, tiny_model, with_twins
from transformers import RepetitionPenaltyLogitsProcessor

from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.pairs.differences import MOST_ERROR, NOISE_WINDOW, Rescorer
from copyspec_eval.types import Difference

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SLOW = pytest.mark.slow
QUICK_DTYPES = [*DTYPES[1::2], *(pytest.param(dtype, marks=SLOW) for dtype in DTYPES[::2])]
DEFECT = 0.1
"""In standard deviations of the logits."""


def every_other(logits):
    return (torch.arange(logits.shape[-1]) % 2).to(logits)


def at_random(logits):
    return torch.randn(logits.shape, generator=torch.Generator().manual_seed(0)).to(logits)


def runner_up(logits):
    return torch.zeros_like(logits).scatter(-1, logits.topk(2).indices[..., 1:], 1.0)


def defect(change):
    return lambda logits: DEFECT * logits.std() * change(logits)


def rescorer_of(model):
    return Rescorer(model, plain_of(model), engine_of(model, NoDrafter))


def many_prompts(every=4):
    return [ids[:length] for ids in prompts() for length in range(3, len(ids), every)]


@pytest.mark.parametrize("change", [every_other, at_random, runner_up])
@pytest.mark.parametrize("dtype", QUICK_DTYPES)
def test_a_defect_of_wide_steps_does_not_excuse_itself(monkeypatch, change, dtype):
    change_wide_steps(monkeypatch, defect(change))
    actual = pairs_of(tiny_model("qwen2", dtype), copying(), False, asked=many_prompts(12))
    agreements = [pair.agreement for pair in actual]
    assert agreements.count("diverged") > 3
    assert "near_tie" not in agreements


@pytest.mark.parametrize("model_type", ["qwen2", "mixtral"])
def test_a_difference_at_the_first_token_is_judged_by_what_follows(monkeypatch, model_type):
    """The prompt's own logits are the same in both arms."""
    model = with_twins(tiny_model(model_type))
    [sequence] = sequences_of(prompts()[1:2], BUDGET)
    [plain] = plain_of(model).generate([sequence.restarted()])
    other = [plain.token_ids[0] ^ 1, *plain.token_ids[1:]]
    explain: Any = functools.partial(rescorer_of(model).explain, sequence, other, plain.token_ids)
    assert explain().agreement == "near_tie"
    change_wide_steps(monkeypatch, defect(every_other))
    assert explain().agreement == "diverged"


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_near_tie_is_no_divergence(monkeypatch, batch_size):
    """The rounding is injected, since not every processor rounds wide steps differently."""
    change_wide_steps(monkeypatch, lambda logits: 2e-7 * every_other(logits) * logits)
    actual = pairs_of(with_twins(tiny_model("phi3")), copying(), False, batch_size)
    different: list[Any] = [pair.difference for pair in actual if pair.difference]
    assert len(different) > 3, "else this test shows nothing"
    for difference in different:
        assert difference.agreement == "near_tie"
        assert difference.token_id == difference.baseline_token_id ^ 1, "twins"
        assert 0 <= difference.margin < difference.noise


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ARCHITECTURES)
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_differences_of_bfloat16_are_near_ties_in_every_architecture(model_type, exact, batch_size):
    model = tiny_model(model_type, torch.bfloat16)
    penalised = functools.partial(greedy, RepetitionPenaltyLogitsProcessor(1.1))
    actual = pairs_of(model, copying(), exact, batch_size, penalised, many_prompts(1))
    assert {pair.agreement for pair in actual} <= {"identical", "near_tie"}


def most_noise(dtype):
    """In standard deviations: 0.5 in bfloat16, 0.06 in float16, 0.0001 otherwise."""
    single = torch.finfo(torch.float32).eps
    eps = torch.finfo(dtype).eps
    return 1.1 * MOST_ERROR[-1] * (eps if eps > single else 16 * single)


@pytest.mark.parametrize("dtype", QUICK_DTYPES)
def test_noise_is_of_the_size_of_rounding(dtype):
    model = tiny_model("qwen2", dtype)
    [sequence] = sequences_of(prompts()[1:2], BUDGET)
    [answer] = plain_of(model).generate([sequence.restarted()])
    rescored = rescorer_of(model).rescore(sequence, answer.token_ids)
    assert rescored.logits.argmax() < VOCABULARY
    assert 0 < rescored.noise <= most_noise(dtype) * float(rescored.logits.std())


def noise_of(model):
    """The noise in readings that are made up: logits of deviation 1, and the error of each."""
    rescorer, generator = rescorer_of(model), torch.Generator().manual_seed(0)
    normal = functools.partial(torch.randn, NOISE_WINDOW, VOCABULARY, generator=generator)
    logits = normal()

    def noise(rounding, judged, at=-1, at_once=0.0):
        native = [logits + at_once * normal(), logits + rounding * normal()]
        return rescorer._noise(logits, logits + judged * normal(), native, at)

    return noise


@pytest.mark.parametrize("dtype", DTYPES)
def test_noise_is_measured_without_the_engine_that_is_judged(dtype):
    rounding = most_noise(dtype) / 30
    noise = noise_of(tiny_model("qwen2", dtype))
    noises = [noise(rounding, of_judged * rounding) for of_judged in (0.0, 1.0, 1.5)]
    assert noises == pytest.approx([4 * rounding] * 3, rel=0.25), "the largest of many"
    assert noise(rounding, 3.0 * rounding) == 0
    assert noise(0.0, rounding / 4) > 0, "the other readings may agree by chance"
    assert noise(0.0, DEFECT) == 0
    assert noise(rounding, torch.nan) == noise(torch.nan, rounding) == 0
    assert noise(most_noise(dtype) / 10, 0.0) > 0
    assert noise(most_noise(dtype) / 6, 0.0) == 0, "beyond rounding nothing is excused"


def test_only_experts_may_move_single_positions_or_set_a_reading_apart():
    routed, dense = (noise_of(tiny_model(name)) for name in ("mixtral", "qwen2"))
    flips = torch.full((NOISE_WINDOW, 1), 1e-6)
    flips[::8] = 1.0
    assert routed(flips, 1e-6) > 1
    assert routed(1e-6, flips, at=8) > 1
    assert 0 < routed(1e-6, flips, at=9) < 1e-5, "of the judged, at that position alone"
    assert dense(flips, 1e-6) == dense(1e-6, flips) == dense(DEFECT, flips) == 0
    assert routed(flips, DEFECT) == dense(flips, DEFECT) == 0
    # Another expert in a short context.
    assert routed(1.0, 1e-6) > 1
    assert dense(1.0, 1e-6) == 0
    assert routed(1.0, 1e-6, at_once=1.0) == 0, "nothing confirms plain decoding"
    assert routed(1.0, DEFECT) == 0, "nothing confirms the judged engine"


def test_the_bound_is_that_of_the_type_that_is_computed_in(monkeypatch):
    model = tiny_model("qwen2")
    noise = noise_of(model)
    assert noise(0.02, 0.02) == 0
    with torch.autocast("cpu", torch.bfloat16):
        assert noise(0.02, 0.02) > 0
        assert noise(0.2, 0.2) == 0
    monkeypatch.setattr(model, "is_quantized", True, raising=False)
    assert noise(0.2, 0.2) > 0
    assert noise(0.5, 0.5) == 0


def test_an_answer_that_ends_elsewhere_is_a_divergence():
    model = tiny_model("qwen2")
    [sequence] = sequences_of(prompts()[:1], BUDGET)
    [answer] = plain_of(model).generate([sequence.restarted()])
    explain, shorter = rescorer_of(model).explain, answer.token_ids[:-1]
    difference = explain(sequence, shorter, answer.token_ids)
    assert difference == Difference(BUDGET - 1, None, answer.token_ids[-1], None, 0.0)
    assert difference.agreement == "diverged"
    assert explain(sequence, shorter, shorter) is None
