"""Exact mode: not only the tokens, every logit is the same bits whatever was drafted."""

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from asking import asked, engine
from byte_model import loaded
from doubles import AdversarialDrafter, OracleDrafter, RandomDrafter, RecordingChooser
from hypothesis import given
from hypothesis import strategies as st
from steps import TEXT, exact_mode_of, first_mismatch
from tiny_models import ARCHITECTURES, larger_model, prompts, skip_if_refused, tiny_model
from ways import EXACT_WAYS

from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.exactness import exact_mode
from copyspec_eval.decoding.modules.alone import in_whole_vectors
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.drafters.registry import DrafterFactory, drafter_factory
from copyspec_eval.errors import ModelError, OptionError
from copyspec_eval.types import ExactMode

Patch = pytest.MonkeyPatch

BUDGET = 24


def logits_of(
    model: Any,
    make_drafter: DrafterFactory = NoDrafter,
    batch_size: int = 1,
    num_draft_tokens: int = 10,
    order: int = 1,
    exact: bool = True,
) -> tuple[list[tuple[int, ...]], list[dict[int, torch.Tensor]]]:
    """Output and the logits of every verified position, per prompt."""
    mode = exact_mode_of(model, batch_size, num_draft_tokens) if exact else None
    sequences = asked(prompts()[::order], BUDGET, RecordingChooser)
    made = engine(model, make_drafter, mode, num_draft_tokens, batch_size=batch_size)
    answers = [answer.token_ids for answer in made.generate(sequences)]
    return answers[::order], [cast(Any, each.chooser).logits for each in sequences][::order]


def check_same_bits(one: tuple[Any, Any], other: tuple[Any, Any], name: str = "") -> None:
    assert one[0] == other[0], name
    for expected, actual in zip(one[1], other[1], strict=True):
        assert actual.keys() == expected.keys(), name
        for position, bits in expected.items():
            assert torch.equal(actual[position], bits), f"{name}: position {position}"


def check_every_drafter(model: Any, batch_size: int, num_draft_tokens: int = 10) -> None:
    plain = logits_of(model, NoDrafter, batch_size, num_draft_tokens)
    answers = dict(zip(prompts(), plain[0], strict=True))
    makers = {name: drafter_factory(options) for name, options in EXACT_WAYS.items()}
    for double in (OracleDrafter, AdversarialDrafter, RandomDrafter):
        makers[double.__name__] = functools.partial(double, answers, model.config.vocab_size)
    for name, make_drafter in makers.items():
        drafted = logits_of(model, make_drafter, batch_size, num_draft_tokens)
        check_same_bits(plain, drafted, name)


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
def test_the_same_bits_for_experts_windows_and_caps(model_type: str, dtype: torch.dtype) -> None:
    check_every_drafter(tiny_model(model_type, dtype), batch_size=4)


@pytest.mark.usefixtures("threads", "either_kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_neighbours_do_not_matter(dtype: torch.dtype) -> None:
    """A resumed run has other requests left, so other neighbours."""
    model = larger_model(dtype)
    check_same_bits(logits_of(model, batch_size=4), logits_of(model, batch_size=4, order=-1))


@pytest.mark.usefixtures("torchs_kernels")
def test_the_check_sees_a_width_that_follows_the_draft() -> None:
    """The same comparison on inexact decoding fails, so it can fail."""
    model = larger_model(torch.float32)
    plain = logits_of(model, exact=False)
    answers = dict(zip(prompts(), plain[0], strict=True))
    drafted = logits_of(model, functools.partial(OracleDrafter, answers, 2048), exact=False)
    assert drafted[0] == plain[0]
    with pytest.raises(AssertionError, match="position"):
        check_same_bits(plain, drafted)


Defect = Callable[[torch.Tensor], torch.Tensor]
"""Of a layer's output, `[rows, tokens, size]`; all but one are right."""


@contextmanager
def defect(model: Any, name: str, change: Defect) -> Iterator[None]:
    layer = model.get_submodule(name)
    hook = layer.register_forward_hook(lambda layer, given, output: change(output))
    try:
        yield
    finally:
        hook.remove()


def flipped(output: torch.Tensor, place: int) -> torch.Tensor:
    output = output.clone()
    output[:, place] = torch.nextafter(output[:, place], torch.tensor(torch.inf))
    return output


DEFECTS: dict[str, tuple[str, Defect]] = {
    "a token in a wide tile": (
        "model.layers.1.mlp.up_proj",
        lambda it: flipped(it, 2) if it.shape[1] > 2 else it,
    ),
    "the last token of an odd number": (
        "lm_head",
        lambda it: flipped(it, -1) if it.shape[1] % 2 else it,
    ),
    "another order of sums in wide steps": (
        "model.layers.0.self_attn.o_proj",
        lambda it: (it * 3 / 3) if it.shape[1] > 4 else it,
    ),
    "a single token": ("model.norm", lambda it: flipped(it, 0) if it.shape[1] == 1 else it),
    "what is beside a token": ("model.layers.0.mlp.down_proj", lambda it: it + it.mean() * 1e-6),
}
"""By what they depend on; where they are, and what they do."""


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_seen_and_its_module_named(name: str, batch_size: int) -> None:
    model = copy.deepcopy(larger_model(torch.float32))
    assert first_mismatch(model, TEXT, ExactMode(), 32, batch_size) is None
    layer, change = DEFECTS[name]
    with defect(model, layer, change):
        outcome = first_mismatch(model, TEXT, ExactMode(), 32, batch_size)
        assert outcome is not None
        assert outcome.module == layer
    assert first_mismatch(model, TEXT, ExactMode(), 32, batch_size) is None


def leaking(query: Any, key: Any, value: Any, mask: torch.Tensor, *others: Any, **more: Any) -> Any:
    """Each token sees the one behind it, too."""
    return attend(query, key, value, mask | mask.roll(1, dims=-1), *others, **more)


def rounding(query: Any, key: torch.Tensor, *others: Any, **more: Any) -> Any:
    output = attend(query, key, *others, **more)
    return output * 3 / 3 if key.shape[2] > 64 else output


attend = kernels.attend


@pytest.mark.usefixtures("our_kernels")
@pytest.mark.parametrize(
    ("defect", "mode", "what"),
    [
        (leaking, ExactMode(), ""),
        (leaking, ExactMode(16), ""),
        (rounding, ExactMode(), "with more masked keys"),
    ],
)
def test_masked_keys_that_count_are_seen(
    defect: Any, mode: ExactMode, what: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(kernels, "attend", defect)
    outcome = first_mismatch(larger_model(torch.float32), TEXT, mode, 15, 1)
    assert outcome is not None
    assert outcome.what.startswith(what)


@pytest.mark.parametrize("place", [1, 3, 7, 11])
def test_at_a_fixed_width_a_place_with_other_bits_is_seen(place: int) -> None:
    model = copy.deepcopy(larger_model(torch.float32))
    assert first_mismatch(model, TEXT, ExactMode(16), 15, 2) is None
    with defect(model, "model.layers.1.mlp.down_proj", lambda output: flipped(output, place)):
        outcome = first_mismatch(model, TEXT, ExactMode(16), 15, 2)
        assert outcome is not None
        assert outcome.module == "model.layers.1.mlp.down_proj"


def test_where_widths_differ_every_step_has_one_or_the_model_is_refused(byte_model: Path) -> None:
    model, tokenizer = loaded(byte_model)
    ways = functools.partial(exact_mode, model, tokenizer, longest=10, batch_size=1)
    assert ways(needed=0).width in (None, 16)
    with defect(model, *DEFECTS["a single token"]):
        assert ways(needed=0) == ExactMode(16)
        assert ways(needed=20) == ExactMode(32)
        with pytest.raises(OptionError, match=r"num_draft_tokens=40 is over 31.*exact=false"):
            ways(needed=40)
    with (
        defect(model, *DEFECTS["what is beside a token"]),
        pytest.raises(ModelError, match=r"first in model.layers.0.mlp.down_proj\); pass exact=fa"),
    ):
        ways(needed=0)


@pytest.mark.usefixtures("our_kernels", "threads")
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_kernels_compute_tokens_alone(model_type: str, dtype: torch.dtype, batch_size: int) -> None:
    """Sizes are such that torch's own code for the last values would be met."""
    skip_if_refused(model_type)
    assert first_mismatch(tiny_model(model_type, dtype), TEXT, ExactMode(), 32, batch_size) is None


FUNCTIONS = [torch.sigmoid, torch.nn.functional.silu, torch.nn.functional.gelu, torch.tanh]


@given(
    st.integers(1, 70), st.integers(1, 70), st.sampled_from(FUNCTIONS), st.sampled_from([1, 2, 3])
)
def test_values_have_the_same_bits_among_any_number(
    size: int, count: int, function: Callable[..., torch.Tensor], num_threads: int
) -> None:
    values = torch.randn(count, size, generator=torch.Generator().manual_seed(count))
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        together = in_whole_vectors(function, values)
        alone = [in_whole_vectors(function, row) for row in values]
        many = in_whole_vectors(function, values.repeat(40, 1))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(together, torch.stack(alone))
    assert torch.equal(together, many[-count:])
    torch.testing.assert_close(together, function(values))


def test_torchs_own_functions_are_not_such() -> None:
    values = torch.randn(200, 7, generator=torch.Generator().manual_seed(0))
    alone = torch.stack([torch.sigmoid(row) for row in values])
    assert not torch.equal(torch.sigmoid(values), alone)
