"""Whether rounding explains a difference: near-ties are told from defects, however small."""

import functools
from typing import Any

import pytest
import torch
from asking import asked as sequences_of
from asking import greedy
from changed_steps import Change, change_wide_steps, put_in_place
from doubles import one_wrong_in
from paired_answers import BUDGET, copying, engine_of, pairs_of, plain_of
from tiny_models import ARCHITECTURES, VOCABULARY, prompts, tiny_model, with_twins
from transformers import RepetitionPenaltyLogitsProcessor

from copyspec_eval.decoding import sequence as sequence_module
from copyspec_eval.decoding.differences import MOST_ERROR, NOISE_WINDOW, Rescorer
from copyspec_eval.decoding.forward import forward
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.types import Difference

Patch = pytest.MonkeyPatch

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SLOW = pytest.mark.slow
QUICK_DTYPES = [*DTYPES[1::2], *(pytest.param(dtype, marks=SLOW) for dtype in DTYPES[::2])]
DEFECT = 0.1
"""In standard deviations of the logits."""


def every_other(logits: torch.Tensor) -> torch.Tensor:
    return (torch.arange(logits.shape[-1]) % 2).to(logits)


def at_random(logits: torch.Tensor) -> torch.Tensor:
    return torch.randn(logits.shape, generator=torch.Generator().manual_seed(0)).to(logits)


def runner_up(logits: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(logits).scatter(-1, logits.topk(2).indices[..., 1:], 1.0)


def defect(change: Change) -> Change:
    return lambda logits: DEFECT * logits.std() * change(logits)


def rescorer_of(model: Any) -> Rescorer:
    return Rescorer(model, plain_of(model), engine_of(model, NoDrafter))


def many_prompts(every: int = 4) -> list[tuple[int, ...]]:
    return [ids[:length] for ids in prompts() for length in range(3, len(ids), every)]


@pytest.mark.parametrize("change", [every_other, at_random, runner_up])
@pytest.mark.parametrize("dtype", QUICK_DTYPES)
def test_a_defect_of_wide_steps_does_not_excuse_itself(
    monkeypatch: Patch, change: Change, dtype: torch.dtype
) -> None:
    change_wide_steps(monkeypatch, defect(change))
    actual = pairs_of(tiny_model("qwen2", dtype), copying(), False, asked=many_prompts(12))
    agreements = [pair.agreement for pair in actual]
    assert agreements.count("diverged") > 3
    assert "near_tie" not in agreements


@pytest.mark.parametrize("model_type", ["qwen2", "mixtral"])
def test_a_difference_at_the_first_token_is_judged_by_what_follows(
    monkeypatch: Patch, model_type: str
) -> None:
    """The prompt's own logits are the same in both arms."""
    model = with_twins(tiny_model(model_type))
    [sequence] = sequences_of(prompts()[1:2], BUDGET)
    [plain] = plain_of(model).generate([sequence.restarted()])
    other = [plain.token_ids[0] ^ 1, *plain.token_ids[1:]]
    rescorer = rescorer_of(model)

    def agreement() -> str:
        difference = rescorer.explain(sequence, other, plain.token_ids)
        assert difference is not None
        return difference.agreement

    assert agreement() == "near_tie"
    change_wide_steps(monkeypatch, defect(every_other))
    assert agreement() == "diverged"


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_near_tie_is_no_divergence(monkeypatch: Patch, batch_size: int) -> None:
    """The rounding is injected, since not every processor rounds wide steps differently."""
    change_wide_steps(monkeypatch, lambda logits: 2e-7 * every_other(logits) * logits)
    actual = pairs_of(with_twins(tiny_model("phi3")), copying(), False, batch_size)
    different = [pair.difference for pair in actual if pair.difference]
    assert len(different) > 3, "else this test shows nothing"
    for difference in different:
        assert difference.agreement == "near_tie"
        assert difference.token_id == (difference.baseline_token_id or 0) ^ 1, "twins"
        assert difference.margin is not None
        assert 0 <= difference.margin < difference.noise


@pytest.mark.parametrize(
    ("batch_size", "exact", "dtype"),
    [
        (1, True, torch.float32),
        (4, True, torch.bfloat16),
        pytest.param(4, False, torch.float32, marks=SLOW),
        pytest.param(1, False, torch.bfloat16, marks=SLOW),
    ],
)
def test_a_wrong_token_taken_for_right_is_a_divergence_at_its_place(
    monkeypatch: Patch, batch_size: int, exact: bool, dtype: torch.dtype
) -> None:
    model = tiny_model("qwen2", dtype)
    sound = pairs_of(model, copying(), exact, batch_size, asked=many_prompts())
    assert "diverged" not in {pair.agreement for pair in sound}
    monkeypatch.setattr(sequence_module, "verify", one_wrong_in(50))
    actual = pairs_of(model, copying(), exact, batch_size, asked=many_prompts())
    diverged = [pair for pair in actual if pair.agreement == "diverged"]
    assert len(diverged) > 3
    for pair in diverged:
        difference = pair.difference
        assert difference is not None
        answer, plain = pair.drafted.token_ids, pair.baseline.token_ids
        at = difference.position
        assert answer[:at] == plain[:at]
        assert (answer[at], plain[at]) == (difference.token_id, difference.baseline_token_id)
        assert answer[at] != plain[at]
        copied = [range(span.start, span.start + span.length) for span in pair.drafted.spans]
        assert any(at in span for span in copied), "it was a draft token"
        assert difference.margin is not None
        assert difference.margin > 2 * difference.noise > 0
    same = [p for p in actual if p.drafted.token_ids == p.baseline.token_ids]
    assert {pair.agreement for pair in same} == {"identical"}


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ARCHITECTURES)
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_differences_of_bfloat16_are_near_ties_in_every_architecture(
    model_type: str, exact: bool, batch_size: int
) -> None:
    model = tiny_model(model_type, torch.bfloat16)
    asked = [ids[:length] for ids in prompts() for length in range(3, len(ids))]
    penalised = functools.partial(greedy, RepetitionPenaltyLogitsProcessor(1.1))
    actual = pairs_of(model, copying(), exact, batch_size, penalised, asked)
    assert {pair.agreement for pair in actual} <= {"identical", "near_tie"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_noise_is_of_the_size_of_rounding(dtype: torch.dtype) -> None:
    model = tiny_model("qwen2", dtype)
    [sequence] = sequences_of(prompts()[1:2], BUDGET)
    [answer] = plain_of(model).generate([sequence.restarted()])
    rescorer = rescorer_of(model)
    rescored = rescorer.rescore(sequence, answer.token_ids)
    assert rescored.logits.argmax() < VOCABULARY
    assert 0 < rescored.noise <= most_noise(dtype) * float(rescored.logits.std())


def most_noise(dtype: torch.dtype) -> float:
    """In standard deviations: 0.5 in bfloat16, 0.06 in float16, 0.0001 otherwise."""
    single = torch.finfo(torch.float32).eps
    eps = torch.finfo(dtype).eps
    return 1.1 * MOST_ERROR[-1] * (eps if eps > single else 16 * single)


Error = torch.Tensor | float


class Readings:
    """What `Rescorer` compares, made up: logits of standard deviation 1, and errors of each."""

    def __init__(self, model: Any) -> None:
        self.rescorer = rescorer_of(model)
        self.random = torch.Generator().manual_seed(0)
        self.logits = self.normal()

    def normal(self) -> torch.Tensor:
        return torch.randn(NOISE_WINDOW, VOCABULARY, generator=self.random)

    def noise(self, rounding: Error, judged: Error, at: int = -1, at_once: float = 0.0) -> float:
        native = [self.logits + at_once * self.normal(), self.logits + rounding * self.normal()]
        return self.rescorer._noise(self.logits, self.logits + judged * self.normal(), native, at)


@pytest.mark.parametrize("dtype", DTYPES)
def test_noise_is_measured_without_the_engine_that_is_judged(dtype: torch.dtype) -> None:
    rounding = most_noise(dtype) / 30
    readings = Readings(tiny_model("qwen2", dtype))
    noises = [readings.noise(rounding, of_judged * rounding) for of_judged in (0.0, 1.0, 1.5)]
    assert noises == pytest.approx([4 * rounding] * 3, rel=0.25), "the largest of many"
    assert readings.noise(rounding, 3.0 * rounding) == 0
    assert readings.noise(0.0, rounding / 4) > 0, "the other readings may agree by chance"
    assert readings.noise(0.0, DEFECT) == 0
    assert readings.noise(rounding, torch.nan) == readings.noise(torch.nan, rounding) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_noise_beyond_rounding_excuses_nothing(dtype: torch.dtype) -> None:
    readings = Readings(tiny_model("qwen2", dtype))
    assert readings.noise(most_noise(dtype) / 10, 0.0) > 0
    assert readings.noise(most_noise(dtype) / 6, 0.0) == 0


def test_only_experts_may_move_single_positions() -> None:
    flips = torch.full((NOISE_WINDOW, 1), 1e-6)
    flips[::8] = 1.0
    routed, dense = (Readings(tiny_model(name)) for name in ("mixtral", "qwen2"))
    assert routed.noise(flips, 1e-6) > 1
    assert routed.noise(1e-6, flips, at=8) > 1
    assert 0 < routed.noise(1e-6, flips, at=9) < 1e-5, "of the judged, at that position alone"
    assert dense.noise(flips, 1e-6) == dense.noise(1e-6, flips) == 0
    for readings in (routed, dense):
        assert readings.noise(flips, DEFECT) == 0
    assert dense.noise(DEFECT, flips) == 0


def test_another_expert_in_a_short_context_sets_one_reading_apart() -> None:
    routed, dense = (Readings(tiny_model(name)) for name in ("mixtral", "qwen2"))
    assert routed.noise(1.0, 1e-6) > 1
    assert dense.noise(1.0, 1e-6) == 0
    assert routed.noise(1.0, 1e-6, at_once=1.0) == 0, "nothing confirms plain decoding"
    assert routed.noise(1.0, DEFECT) == 0, "nothing confirms the judged engine"


def test_the_bound_is_that_of_the_type_that_is_computed_in(monkeypatch: Patch) -> None:
    model = tiny_model("qwen2")
    readings = Readings(model)
    assert readings.noise(0.02, 0.02) == 0
    with torch.autocast("cpu", torch.bfloat16):
        assert readings.noise(0.02, 0.02) > 0
        assert readings.noise(0.2, 0.2) == 0
    monkeypatch.setattr(model, "is_quantized", True, raising=False)
    assert readings.noise(0.2, 0.2) > 0
    assert readings.noise(0.5, 0.5) == 0


def test_a_forward_that_is_wrong_excuses_nothing(monkeypatch: Patch) -> None:
    def forgetful(model: Any, cache: Any, parts: Any, *more: Any) -> Any:
        """Sees one position less than it should, in wide steps."""
        moved = [part._replace(start=part.start + (len(part.token_ids) > 1)) for part in parts]
        return forward(model, cache, moved, *more)

    put_in_place(monkeypatch, forgetful)
    agreements = {pair.agreement for pair in pairs_of(tiny_model("qwen2"), copying(), False)}
    assert {"diverged"} <= agreements <= {"diverged", "identical"}


def test_an_answer_that_ends_elsewhere_is_a_divergence() -> None:
    model = tiny_model("qwen2")
    [sequence] = sequences_of(prompts()[:1], BUDGET)
    [answer] = plain_of(model).generate([sequence.restarted()])
    rescorer = rescorer_of(model)
    shorter = answer.token_ids[:-1]
    difference = rescorer.explain(sequence, shorter, answer.token_ids)
    assert difference == Difference(BUDGET - 1, None, answer.token_ids[-1], None, 0.0)
    assert difference.agreement == "diverged"
    assert rescorer.explain(sequence, shorter, shorter) is None
