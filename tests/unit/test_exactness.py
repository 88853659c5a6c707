"""Exact mode: not only the tokens, every logit is the same bits whatever was drafted."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from doubles import AdversarialDrafter, OracleDrafter, RandomDrafter, RecordingChooser
from tiny_models import VOCABULARY, larger_model, prompts, tiny_model
from ways import EXACT_WAYS

from copyspec_eval.decoding.engine import Engine, exact_width
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.base import Drafter
from copyspec_eval.drafters.registry import DrafterFactory, drafter_factory
from copyspec_eval.errors import OptionError
from copyspec_eval.types import DraftOptions

BUDGET = 24


@pytest.fixture(params=[1, 2], ids=["1-thread", "2-threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def logits_of(
    model: Any,
    make_drafter: DrafterFactory,
    batch_size: int,
    num_draft_tokens: int = 10,
    order: slice = slice(None),
) -> tuple[list[tuple[int, ...]], list[dict[int, torch.Tensor]]]:
    """Output and the logits of every verified position, per prompt."""
    choosers = [RecordingChooser() for _ in prompts()]
    sequences = [
        Sequence(prompt, StopRule(BUDGET), chooser)
        for prompt, chooser in zip(prompts()[order], choosers, strict=True)
    ]
    engine = Engine(model, make_drafter, num_draft_tokens=num_draft_tokens, batch_size=batch_size)
    answers = engine.generate(sequences)
    return [answer.token_ids for answer in answers], [chooser.logits for chooser in choosers]


def check_every_drafter(model: Any, batch_size: int, num_draft_tokens: int = 10) -> None:
    tokens, logits = logits_of(model, no_drafter, batch_size, num_draft_tokens)
    answers = dict(zip(prompts(), tokens, strict=True))
    makers: dict[str, DrafterFactory] = {
        name: drafter_factory(options) for name, options in EXACT_WAYS.items() if name != "none"
    }
    for double in (OracleDrafter, AdversarialDrafter, RandomDrafter):
        makers[double.__name__] = functools.partial(double, answers, model.config.vocab_size)
    for name, make_drafter in makers.items():
        drafted_tokens, drafted_logits = logits_of(
            model, make_drafter, batch_size, num_draft_tokens
        )
        assert drafted_tokens == tokens, name
        for expected, actual in zip(logits, drafted_logits, strict=True):
            assert actual.keys() == expected.keys(), name
            for position, bits in expected.items():
                assert torch.equal(actual[position], bits), f"{name}: position {position}"


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_are_the_same_bits(dtype: torch.dtype, batch_size: int) -> None:
    check_every_drafter(larger_model(dtype), batch_size)


@pytest.mark.parametrize("num_draft_tokens", [7, 31])
def test_logits_are_the_same_bits_at_every_width(num_draft_tokens: int) -> None:
    check_every_drafter(larger_model(torch.bfloat16), 4, num_draft_tokens)


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16], ids=str
)
@pytest.mark.parametrize("model_type", ["mixtral", "gpt_oss", "gemma2", "gpt2"])
def test_logits_are_the_same_bits_for_experts_windows_and_caps(
    model_type: str, dtype: torch.dtype
) -> None:
    assert tiny_model(model_type, dtype).config.vocab_size == VOCABULARY
    check_every_drafter(tiny_model(model_type, dtype), batch_size=4)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_neither_neighbours_nor_spare_capacity_matter(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run has other requests left, so other neighbours and another largest request."""
    model = larger_model(dtype)
    tokens, logits = logits_of(model, no_drafter, 4)
    reversed_tokens, reversed_logits = logits_of(model, no_drafter, 4, order=slice(None, None, -1))
    monkeypatch.setattr("copyspec_eval.decoding.engine._EXACT_EXTENT", 1536)
    wide_tokens, wide_logits = logits_of(model, no_drafter, 4)
    assert reversed_tokens[::-1] == wide_tokens == tokens
    for wanted, *others in zip(logits, reversed_logits[::-1], wide_logits, strict=True):
        for position, bits in wanted.items():
            assert all(torch.equal(other[position], bits) for other in others)


def test_the_check_sees_a_width_that_follows_the_draft() -> None:
    """The same comparison on inexact decoding fails, so it can fail."""
    model = larger_model(torch.float32)
    answers = dict(zip(prompts(), logits_of(model, no_drafter, batch_size=1)[0], strict=True))
    runs = []
    for make_drafter in (no_drafter, functools.partial(OracleDrafter, answers, 2048)):
        choosers = [RecordingChooser() for _ in prompts()]
        sequences = [
            Sequence(prompt, StopRule(BUDGET), chooser)
            for prompt, chooser in zip(prompts(), choosers, strict=True)
        ]
        Engine(model, make_drafter, num_draft_tokens=10, exact=False).generate(sequences)
        runs.append([chooser.logits for chooser in choosers])
    same = [
        torch.equal(one[position], other[position])
        for one, other in zip(*runs, strict=True)
        for position in one.keys() & other.keys()
    ]
    assert not all(same)


def no_drafter() -> Drafter:
    return drafter_factory(DraftOptions("none"))()


def test_exact_width_is_never_in_between() -> None:
    assert [exact_width(n) for n in (1, 7, 8, 10, 15, 16, 31)] == [8, 8, 16, 16, 16, 32, 32]
    with pytest.raises(OptionError, match=r"num_draft_tokens=32.*exact=false"):
        exact_width(32)
