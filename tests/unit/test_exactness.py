"""Exact mode: not only the tokens, every logit is the same bits whatever was drafted."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from doubles import AdversarialDrafter, OracleDrafter, RandomDrafter, RecordingChooser
from hypothesis import given
from hypothesis import strategies as st
from steps import TEXT, exact_steps
from tiny_models import VOCABULARY, larger_model, prompts, tiny_model
from transformers import LogitsProcessorList
from ways import EXACT_WAYS

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.exactness import check_exact_steps, fixed_steps, measure_exact_steps
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.steps import Steps
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.decoding.widths import exact_extent, ladder, most_padding, padded
from copyspec_eval.drafters.base import Drafter
from copyspec_eval.drafters.registry import DrafterFactory, drafter_factory
from copyspec_eval.errors import OptionError
from copyspec_eval.types import DraftOptions, ExactSteps

BUDGET = 24


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
    engine = Engine(
        model,
        make_drafter,
        num_draft_tokens=num_draft_tokens,
        exact=exact_steps(model, batch_size),
        batch_size=batch_size,
    )
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


@pytest.mark.usefixtures("threads", "either_kernels")
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_are_the_same_bits(dtype: torch.dtype, batch_size: int) -> None:
    check_every_drafter(larger_model(dtype), batch_size)


@pytest.mark.parametrize("num_draft_tokens", [3, 32])
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


@pytest.mark.usefixtures("threads", "either_kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_neither_neighbours_nor_spare_capacity_matter(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run has other requests left, so other neighbours and another largest request."""
    model = larger_model(dtype)
    tokens, logits = logits_of(model, no_drafter, 4)
    reversed_tokens, reversed_logits = logits_of(model, no_drafter, 4, order=slice(None, None, -1))
    monkeypatch.setattr(Steps, "tight", lambda self, length: 1536)
    wide_tokens, wide_logits = logits_of(model, no_drafter, 4)
    assert reversed_tokens[::-1] == wide_tokens == tokens
    for wanted, *others in zip(logits, reversed_logits[::-1], wide_logits, strict=True):
        for position, bits in wanted.items():
            assert all(torch.equal(other[position], bits) for other in others)


@pytest.mark.usefixtures("torchs_kernels")
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
        Engine(model, make_drafter, num_draft_tokens=10, exact=None).generate(sequences)
        runs.append([chooser.logits for chooser in choosers])
    same = [
        torch.equal(one[position], other[position])
        for one, other in zip(*runs, strict=True)
        for position in one.keys() & other.keys()
    ]
    assert not all(same)


def no_drafter() -> Drafter:
    return drafter_factory(DraftOptions("none"))()


class OwnKernel:
    """Gives some rows of steps of some shapes other bits, as a library's other kernel does."""

    def __init__(self, is_other: Callable[[int], bool], row: int = -1) -> None:
        self.is_other, self.row = is_other, row
        self.widths: set[int] = set()

    def __call__(self, module: Any, inputs: Any, logits: torch.Tensor) -> torch.Tensor:
        width = logits.shape[1]
        self.widths.add(width)
        if self.is_other(width):
            logits = logits.clone()
            bits = logits.view(torch.int32)
            bits[:, self.row] ^= 1
        return logits


@contextmanager
def kernel(model: Any, is_other: Callable[[int], bool], row: int = -1) -> Iterator[OwnKernel]:
    own = OwnKernel(is_other, row)
    hook = model.lm_head.register_forward_hook(own)
    try:
        yield own
    finally:
        hook.remove()


def measured(model: Any, batch_size: int = 1) -> ExactSteps | None:
    return measure_exact_steps(model, TEXT, 33, batch_size)


@pytest.mark.parametrize(
    ("batch_size", "row"),
    [
        (1, -1),
        (4, 5),
        pytest.param(1, 0, marks=pytest.mark.slow),
        pytest.param(1, 5, marks=pytest.mark.slow),
        pytest.param(4, 0, marks=pytest.mark.slow),
        pytest.param(4, -1, marks=pytest.mark.slow),
    ],
)
def test_a_kernel_that_changes_one_row_is_left_out(batch_size: int, row: int) -> None:
    model = larger_model(torch.float32)
    usual = measured(model, batch_size)
    assert usual is not None
    assert {6, 10, 14} < set(usual.widths)
    with kernel(model, lambda width: width in (6, 14), row):
        steps = measured(model, batch_size)
        widths, totals = (
            tuple(number for number in numbers if number not in (6, 14))
            for numbers in (usual.widths, usual.totals)
        )
        assert steps == replace(usual, widths=widths, totals=totals)
        assert check_exact_steps(model, TEXT, steps, batch_size)
        assert not check_exact_steps(model, TEXT, usual, batch_size), "kept, and no longer true"


def test_where_one_row_has_its_own_kernel_plain_decoding_takes_two() -> None:
    model = larger_model(torch.bfloat16)
    copied = copy.deepcopy(model)
    with kernel(copied, lambda width: width == 1) as own:
        steps = measured(copied)
        assert steps is not None
        assert (steps.kind, steps.widths[:3]) == ("two rows", (2, 3, 4))
        own.widths.clear()
        engine = Engine(copied, no_drafter, num_draft_tokens=0, exact=steps)
        [answer] = engine.generate([greedy_sequence()])
        assert own.widths == {1, 2}, "the prefill keeps one row of logits, each step has two"
    [wanted] = Engine(model, no_drafter, num_draft_tokens=0, exact=steps).generate(
        [greedy_sequence()]
    )
    assert answer.token_ids == wanted.token_ids


def test_where_no_widths_agree_there_is_no_class() -> None:
    model = larger_model(torch.float32)
    with kernel(model, lambda width: width in (1, 2)):
        assert measured(model) is None


@pytest.mark.parametrize("batch_size", [1, 4])
def test_no_width_outside_the_class_is_ever_run(batch_size: int) -> None:
    model = larger_model(torch.float32)
    with kernel(model, lambda width: width in (3, 7, 8 + 2)) as own:
        steps = measured(model, batch_size)
        assert steps is not None
        assert not {3, 7, 10} & set(steps.widths)
        own.widths.clear()
        answers: dict[tuple[int, ...], tuple[int, ...]] = dict.fromkeys(prompts(), (5,) * BUDGET)
        engine = Engine(
            model,
            functools.partial(RandomDrafter, answers, model.config.vocab_size),
            num_draft_tokens=14,
            exact=steps,
            batch_size=batch_size,
        )
        engine.warm_up(greedy_sequence())
        engine.generate([greedy_sequence(prompt) for prompt in prompts()])
        assert own.widths <= {1, *steps.widths, *steps.totals}
        assert bool(own.widths & {*steps.totals} - {*steps.widths}) == (batch_size > 1)
        assert len(own.widths) > 5


@contextmanager
def attention_kernel(is_other: Callable[[int], bool]) -> Iterator[list[int]]:
    """Other bits where `is_other` of the number of keys attended to; gives the numbers seen."""
    extents: list[int] = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def attend(query: Any, key: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        extents.append(key.shape[2])
        output: torch.Tensor = kernel(query, key, *arguments, **options)
        return output * 1.001 if is_other(key.shape[2]) else output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.nn.functional.scaled_dot_product_attention", attend)
        yield extents


@pytest.mark.usefixtures("torchs_kernels")
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_length_of_a_block_of_keys_with_other_bits_is_left_out(batch_size: int) -> None:
    model = larger_model(torch.float32)
    usual = measured(model, batch_size)
    assert usual is not None
    assert usual.block_lengths[0] < 192 < usual.block_lengths[-1] == 512
    with attention_kernel(lambda extent: 0 < extent % 512 < 192) as extents:
        steps = measured(model, batch_size)
        assert steps is not None
        assert min(steps.block_lengths) == 192
        assert steps.widths == usual.widths
        assert check_exact_steps(model, TEXT, steps, batch_size)
        assert not check_exact_steps(model, TEXT, usual, batch_size), "kept, and no longer true"
        engine = Engine(model, no_drafter, num_draft_tokens=0, exact=steps, batch_size=batch_size)
        extents.clear()
        engine.generate([greedy_sequence((3, 1, 4) * 30), greedy_sequence((3, 1, 4) * 60)])
        assert set(extents) == {*steps.block_lengths[:2]}, "of the prefill, too"


@pytest.mark.usefixtures("torchs_kernels")
def test_where_masked_keys_matter_a_sequence_attends_to_equally_many_throughout() -> None:
    model = larger_model(torch.float32)
    with attention_kernel(lambda extent: extent > 512) as extents:
        steps = measured(model)
        assert steps is not None
        assert steps.block_lengths == ()
        engine = Engine(model, no_drafter, num_draft_tokens=0, exact=steps)
        extents.clear()
        engine.generate([greedy_sequence((3, 1, 4) * 170)])
        assert set(extents) == {256, 510, 1024}, "a prefill's two chunks, and all steps"


@given(st.integers(1, 2000), st.sets(st.sampled_from([64, 192, 384])))
def test_blocks_of_keys_hold_every_position(length: int, short: set[int]) -> None:
    lengths = (*sorted(short), 512)
    extent = exact_extent(length, lengths)
    assert length <= extent < length + 512
    assert extent % 512 in {0, *lengths}
    assert exact_extent(extent, lengths) == extent <= exact_extent(length, ())


@pytest.mark.parametrize("width", [8, 16, 32])
def test_a_fixed_width_is_refused_where_later_tokens_matter(width: int) -> None:
    """As with a quantisation whose scale is taken over all tokens of a step."""
    model = copy.deepcopy(larger_model(torch.float32))
    steps = fixed_steps(width - 1)
    assert steps.widths == (width,)
    assert check_exact_steps(model, TEXT, steps, batch_size=1)
    linear = torch.nn.Linear.forward

    class Scaled(torch.nn.Linear):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            scale = hidden.abs().max() / 127
            return linear(self, (hidden / scale).round() * scale)

    for layer in model.model.layers:
        layer.mlp.up_proj.__class__ = Scaled
    assert not check_exact_steps(model, TEXT, steps, batch_size=1)
    assert measured(model) is None


def test_a_draft_that_no_step_holds_is_refused() -> None:
    steps = ExactSteps("one row", (1, 2, 4), block_lengths=(), any_batch=True)
    steps.check_holds(3)
    with pytest.raises(OptionError, match=r"num_draft_tokens=4 is over 3.*exact=false"):
        steps.check_holds(4)


@given(st.integers(1, 700))
def test_the_ladder_reaches_every_width_with_little_padding(widest: int) -> None:
    widths = ladder(widest)
    assert widths[0] == 1
    assert widest in widths
    assert widths[-1] <= max(1.25 * widest, widest)
    for needed in range(1, widest + 1):
        assert needed <= padded(widths, needed) <= 1.25 * needed
    assert most_padding(widths) < 0.2 * widths[-1] or widest < 6


def greedy_sequence(prompt: tuple[int, ...] = (3, 1, 4, 1, 5, 9, 2, 6)) -> Sequence:
    return Sequence(prompt, StopRule(BUDGET), TokenChooser(LogitsProcessorList(), False))
