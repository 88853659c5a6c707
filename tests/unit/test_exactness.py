"""Exact mode: not only the tokens, every logit is the same bits whatever was drafted."""

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from doubles import AdversarialDrafter, OracleDrafter, RandomDrafter, RecordingChooser
from hypothesis import given
from hypothesis import strategies as st
from steps import TEXT, exact_mode_of
from tiny_models import (
    ARCHITECTURES,
    VOCABULARY,
    larger_model,
    prompts,
    skip_if_refused,
    tiny_model,
)
from transformers import AutoModelForCausalLM, AutoTokenizer
from ways import EXACT_WAYS

from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.exactness import check_exact, exact_mode
from copyspec_eval.decoding.modules.alone import in_whole_vectors
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.base import Drafter
from copyspec_eval.drafters.registry import DrafterFactory, drafter_factory
from copyspec_eval.errors import ModelError, OptionError
from copyspec_eval.types import DraftOptions, ExactMode

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
        exact=exact_mode_of(model, batch_size, num_draft_tokens),
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
def test_neighbours_do_not_matter(dtype: torch.dtype) -> None:
    """A resumed run has other requests left, so other neighbours."""
    model = larger_model(dtype)
    tokens, logits = logits_of(model, no_drafter, 4)
    reversed_tokens, reversed_logits = logits_of(model, no_drafter, 4, order=slice(None, None, -1))
    assert reversed_tokens[::-1] == tokens
    for wanted, other in zip(logits, reversed_logits[::-1], strict=True):
        for position, bits in wanted.items():
            assert torch.equal(other[position], bits)


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


Defect = Callable[[torch.Tensor], torch.Tensor]
"""Of a layer's output, `[rows, tokens, size]`; all but one are right."""


@contextmanager
def defect(model: Any, name: str, change: Defect) -> Iterator[None]:
    """Within it, a layer's outputs are changed."""
    layer = model.get_submodule(name)
    hook = layer.register_forward_hook(lambda layer, given, output: change(output))
    try:
        yield
    finally:
        hook.remove()


def flipped(output: torch.Tensor, place: int) -> torch.Tensor:
    """The last bits of a token are others."""
    output = output.clone()
    output[:, place] = torch.nextafter(output[:, place], torch.tensor(torch.inf))
    return output


DEFECTS: dict[str, tuple[str, Defect]] = {
    "a token in a wide tile": (
        "model.layers.1.mlp.up_proj",
        lambda output: flipped(output, 2) if output.shape[1] > 2 else output,
    ),
    "the last token of an odd number": (
        "lm_head",
        lambda output: flipped(output, -1) if output.shape[1] % 2 else output,
    ),
    "another order of sums in wide steps": (
        "model.layers.0.self_attn.o_proj",
        lambda output: (output * 3 / 3) if output.shape[1] > 4 else output,
    ),
    "a single token": (
        "model.norm",
        lambda output: flipped(output, 0) if output.shape[1] == 1 else output,
    ),
    "what is beside a token": (
        "model.layers.0.mlp.down_proj",
        lambda output: output + output.mean() * 1e-6,
    ),
}
"""By what they depend on; where they are, and what they do."""


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_seen_and_its_module_named(name: str, batch_size: int) -> None:
    model = copy.deepcopy(larger_model(torch.float32))
    assert check_exact(model, TEXT, ExactMode(), 32, batch_size) is None
    layer, change = DEFECTS[name]
    with defect(model, layer, change):
        outcome = check_exact(model, TEXT, ExactMode(), 32, batch_size)
        assert outcome is not None
        assert outcome.module == layer
    assert check_exact(model, TEXT, ExactMode(), 32, batch_size) is None


@pytest.mark.usefixtures("our_kernels")
@pytest.mark.parametrize("mode", [ExactMode(), ExactMode(16)], ids=str)
def test_a_masked_key_that_counts_is_seen(mode: ExactMode, monkeypatch: pytest.MonkeyPatch) -> None:
    model = larger_model(torch.float32)
    attend = kernels.attend

    def leaking(
        query: Any, key: Any, value: Any, mask: torch.Tensor, *others: Any, **more: Any
    ) -> Any:
        # Each token sees the one behind it, too.
        return attend(query, key, value, mask | mask.roll(1, dims=-1), *others, **more)

    monkeypatch.setattr(kernels, "attend", leaking)
    assert check_exact(model, TEXT, mode, 15, 1) is not None


@pytest.mark.usefixtures("our_kernels")
def test_masked_keys_that_are_rounded_otherwise_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = kernels.attend

    def rounding(query: Any, key: torch.Tensor, *others: Any, **more: Any) -> Any:
        output = attend(query, key, *others, **more)
        return output * 3 / 3 if key.shape[2] > 64 else output

    monkeypatch.setattr(kernels, "attend", rounding)
    outcome = check_exact(larger_model(torch.float32), TEXT, ExactMode(), 15, 1)
    assert outcome is not None
    assert outcome.what.startswith("with more masked keys")


@pytest.mark.parametrize("place", [1, 3, 7, 11])
def test_at_a_fixed_width_a_place_with_other_bits_is_seen(place: int) -> None:
    model = copy.deepcopy(larger_model(torch.float32))
    assert check_exact(model, TEXT, ExactMode(16), 15, 2) is None
    with defect(model, "model.layers.1.mlp.down_proj", lambda output: flipped(output, place)):
        outcome = check_exact(model, TEXT, ExactMode(16), 15, 2)
        assert outcome is not None
        assert outcome.module == "model.layers.1.mlp.down_proj"


def test_where_widths_differ_every_step_has_one_and_else_the_model_is_refused(
    byte_model: Path,
) -> None:
    auto: Any = AutoModelForCausalLM
    model, words = auto.from_pretrained(byte_model).eval(), AutoTokenizer
    tokenizer: Any = words.from_pretrained(byte_model)
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
def test_our_kernels_compute_every_token_alone(
    model_type: str, dtype: torch.dtype, batch_size: int
) -> None:
    """Sizes are such that torch's own code for the last values would be met."""
    skip_if_refused(model_type)
    assert check_exact(tiny_model(model_type, dtype), TEXT, ExactMode(), 32, batch_size) is None


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
    """Else the wrapper is needless, and the test above shows nothing."""
    values = torch.randn(200, 7, generator=torch.Generator().manual_seed(0))
    alone = torch.stack([torch.sigmoid(row) for row in values])
    assert not torch.equal(torch.sigmoid(values), alone)
