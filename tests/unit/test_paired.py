"""Paired decoding: both arms, in turn, and the right verdict where their answers differ."""

from __future__ import annotations

import functools
import math
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import pytest
import torch
from doubles import RecordingChooser, one_wrong_in
from tiny_models import ARCHITECTURES, VOCABULARY, prompts, tiny_model, with_twins
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
)
from ways import EXACT_WAYS, WAYS

from copyspec_eval.decoding import engine as engine_module
from copyspec_eval.decoding import sequence as sequence_module
from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.differences import NOISE_WINDOW, Rescorer
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.paired import Baseline, PairedEngine
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.serving import forward
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.drafters.registry import DrafterFactory, drafter_factory
from copyspec_eval.errors import RequestError
from copyspec_eval.types import Difference, DraftOptions, Generation

BUDGET = 40


@dataclass(frozen=True)
class Pair:
    index: int
    drafted: Generation
    baseline: Baseline

    @property
    def agreement(self) -> str:
        difference = self.baseline.difference
        return difference.agreement if difference else "identical"


def greedy(*processors: Any) -> TokenChooser:
    return TokenChooser(LogitsProcessorList(processors), do_sample=False)


def copying(gamma: int = 1) -> DrafterFactory:
    return drafter_factory(DraftOptions("copyspec", gamma=gamma))


def pairs_of(
    model: Any,
    make_drafter: DrafterFactory,
    exact: bool = True,
    batch_size: int = 1,
    make_chooser: Callable[[], TokenChooser] = greedy,
    asked: abc.Sequence[tuple[int, ...]] | None = None,
) -> list[Pair]:
    engine = Engine(model, make_drafter, num_draft_tokens=10, exact=exact, batch_size=batch_size)
    sequences = [Sequence(ids, StopRule(BUDGET), make_chooser()) for ids in asked or prompts()]
    found: list[Pair] = []
    PairedEngine(model, engine).generate(sequences, lambda *parts: found.append(Pair(*parts)))
    assert [pair.index for pair in found] == list(range(len(sequences)))
    return found


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize(
    ("drafter", "exact"),
    [*((name, False) for name in WAYS), *((name, True) for name in EXACT_WAYS)],
)
def test_every_drafter_is_identical_to_its_baseline(
    drafter: str, exact: bool, batch_size: int
) -> None:
    model = tiny_model("qwen2")
    maker = drafter_factory(WAYS[drafter])
    alone = Engine(model, NoDrafter, num_draft_tokens=10).generate(
        [Sequence(ids, StopRule(BUDGET), greedy()) for ids in prompts()]
    )
    for pair, wanted in zip(pairs_of(model, maker, exact, batch_size), alone, strict=True):
        assert pair.agreement == "identical"
        plain = pair.baseline.generation
        assert pair.drafted.token_ids == plain.token_ids == wanted.token_ids
        assert plain.counts.num_forwards == len(plain.token_ids), "one token a forward"
        assert plain.batch_size == batch_size


@pytest.mark.parametrize(
    "processor", [RepetitionPenaltyLogitsProcessor(1.3), TemperatureLogitsWarper(2.0)]
)
def test_both_arms_draw_the_same_tokens_after_the_same_processors(processor: Any) -> None:
    found = pairs_of(
        tiny_model("llama"),
        copying(),
        make_chooser=lambda: TokenChooser(LogitsProcessorList([processor]), True, seed=5),
    )
    assert {pair.agreement for pair in found} == {"identical"}
    assert len({pair.drafted.token_ids for pair in found}) == len(found)


def test_arms_take_turns_and_one_token_is_fed_to_the_baseline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[tuple[int, int]] = []

    def watched(model: Any, cache: Any, first_row: int, ids: Any, *args: Any, **kwargs: Any) -> Any:
        log.append(tuple(ids.shape))
        return forward(model, cache, first_row, ids, *args, **kwargs)

    monkeypatch.setattr(engine_module, "forward", watched)
    pairs_of(tiny_model("qwen2"), copying(), batch_size=2, asked=[(3, 4, 5)] * 8)
    steps = [width for rows, width in log if width != 3]  # 3 is the prefill's
    arms = [width for index, width in enumerate(steps) if index == 0 or steps[index - 1] != width]
    assert arms == [16, 1, 16, 1, 16], "four groups of two: AB, BA, AB, BA"
    assert {rows for rows, width in log if width != 3} == {2}


def test_seconds_of_both_arms_are_within_the_wall_clock() -> None:
    for batch_size in (1, 4):
        started = perf_counter()
        found = pairs_of(tiny_model("qwen2"), copying(), batch_size=batch_size)
        elapsed = perf_counter() - started
        both = [answer.counts for p in found for answer in (p.drafted, p.baseline.generation)]
        assert 0 < sum(counts.seconds or math.inf for counts in both) <= elapsed


@pytest.mark.parametrize(
    ("batch_size", "exact", "dtype"),
    [
        (1, True, torch.float32),
        (4, True, torch.bfloat16),
        pytest.param(4, False, torch.float32, marks=pytest.mark.slow),
        pytest.param(1, False, torch.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_a_wrong_token_taken_for_right_is_a_divergence_at_its_place(
    monkeypatch: pytest.MonkeyPatch, batch_size: int, exact: bool, dtype: torch.dtype
) -> None:
    model = tiny_model("qwen2", dtype)
    asked = [ids[:length] for ids in prompts() for length in range(3, len(ids), 4)]
    sound = pairs_of(model, copying(), exact, batch_size, asked=asked)
    assert "diverged" not in {pair.agreement for pair in sound}
    monkeypatch.setattr(sequence_module, "verify", one_wrong_in(50))
    found = pairs_of(model, copying(), exact, batch_size, asked=asked)
    diverged = [pair for pair in found if pair.agreement == "diverged"]
    assert len(diverged) > 3
    for pair in diverged:
        difference = pair.baseline.difference
        assert difference is not None
        answer, plain = pair.drafted.token_ids, pair.baseline.generation.token_ids
        at = difference.position
        assert answer[:at] == plain[:at]
        assert (answer[at], plain[at]) == (difference.token_id, difference.baseline_token_id)
        assert answer[at] != plain[at]
        copied = [range(span.start, span.start + span.length) for span in pair.drafted.spans]
        assert any(at in span for span in copied), "it was a draft token"
        assert difference.margin is not None
        assert difference.margin > 2 * difference.noise > 0
    right = [pair for pair in found if pair.drafted.token_ids == pair.baseline.generation.token_ids]
    assert all(pair.agreement == "identical" for pair in right)
    assert right


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
    found = pairs_of(model, copying(), exact, batch_size, penalised, asked)
    assert {pair.agreement for pair in found} <= {"identical", "near_tie"}


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_near_tie_is_told_from_a_divergence(
    monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    """The rounding is injected, since not every processor rounds wide steps differently."""

    def rounded(model: Any, cache: Any, first_row: int, ids: Any, *args: Any, **more: Any) -> Any:
        logits = forward(model, cache, first_row, ids, *args, **more)
        if ids.shape[1] == 16:
            logits[..., 1::2] *= 1 + 1e-6
        return logits

    monkeypatch.setattr(engine_module, "forward", rounded)
    found = pairs_of(with_twins(tiny_model("phi3")), copying(), True, batch_size)
    different = [pair.baseline.difference for pair in found if pair.baseline.difference]
    assert len(different) > 3, "else this test shows nothing"
    for difference in different:
        assert difference.agreement == "near_tie"
        assert {difference.token_id, difference.baseline_token_id} == {
            (difference.token_id or 0) // 2 * 2,
            (difference.token_id or 0) // 2 * 2 + 1,
        }, "twins"
        assert difference.margin is not None
        assert 0 <= difference.margin < difference.noise


def test_noise_is_that_of_the_dtype() -> None:
    noises = {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        model = tiny_model("qwen2", dtype)
        sequence = Sequence(prompts()[1], StopRule(BUDGET), greedy())
        plain = Engine(model, NoDrafter, num_draft_tokens=0, exact=False)
        wide = Engine(model, NoDrafter, num_draft_tokens=10)
        [answer] = plain.generate([sequence.restarted()])
        rescored = Rescorer(model, plain, wide).rescore(sequence, answer.token_ids)
        assert rescored.logits.argmax() < VOCABULARY
        noises[dtype] = rescored.noise
    assert noises[torch.float64] < 2e-6 < noises[torch.float32] < 1e-4 < noises[torch.bfloat16]
    assert noises[torch.bfloat16] < 0.5


@pytest.mark.parametrize("length", [0, 1, NOISE_WINDOW - 1, NOISE_WINDOW, NOISE_WINDOW + 17])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_reading_an_answer_again_gives_the_bits_that_chose_it(length: int, batch_size: int) -> None:
    model = tiny_model("qwen2", torch.bfloat16)
    chooser = RecordingChooser()
    sequence = Sequence(prompts()[1], StopRule(100), chooser)
    wide = Engine(model, copying(), num_draft_tokens=10, batch_size=batch_size)
    [answer] = wide.generate([sequence])
    read = wide.read(sequence, answer.token_ids[:length], NOISE_WINDOW)
    assert len(read) == min(NOISE_WINDOW, length + 1)
    for back, logits in enumerate(reversed(read)):
        seen = chooser.logits[len(sequence.prompt_ids) + length - back]
        assert torch.equal(logits, seen.float())


def test_a_forward_that_is_wrong_excuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("qwen2")

    def forgetful(
        model: Any, cache: Any, first_row: int, ids: Any, start: Any, extent: int, **more: Any
    ) -> Any:
        """Sees one position less than it should, in wide steps."""
        wide = ids.shape[1] == 16
        return forward(model, cache, first_row, ids, start + 1 if wide else start, extent, **more)

    monkeypatch.setattr(engine_module, "forward", forgetful)
    found = pairs_of(model, copying())
    assert "diverged" in {pair.agreement for pair in found}
    assert "near_tie" not in {pair.agreement for pair in found}


def test_an_answer_that_ends_elsewhere_is_a_divergence() -> None:
    model = tiny_model("qwen2")
    plain = Engine(model, NoDrafter, num_draft_tokens=0, exact=False)
    sequence = Sequence(prompts()[0], StopRule(BUDGET), greedy())
    [answer] = plain.generate([sequence.restarted()])
    rescorer = Rescorer(model, plain, Engine(model, NoDrafter, num_draft_tokens=10))
    shorter = answer.token_ids[:-1]
    difference = rescorer.explain(sequence, shorter, answer.token_ids)
    assert difference == Difference(BUDGET - 1, None, answer.token_ids[-1], None, 0.0)
    assert difference.agreement == "diverged"
    assert rescorer.explain(sequence, shorter, shorter) is None


def test_a_request_that_does_not_fit_is_refused_before_any_work() -> None:
    model = tiny_model("phi3")
    config = model.config
    before = config.rope_parameters
    config.rope_parameters = {
        "rope_type": "longrope",
        "original_max_position_embeddings": 32,
        "rope_theta": 1e4,
    }
    try:
        with pytest.raises(RequestError, match="past 32"):
            pairs_of(model, copying())
    finally:
        config.rope_parameters = before
