"""Our kernels compute what they are to, each token by itself."""

import logging
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec_eval.decoding import kernels

pytestmark = pytest.mark.usefixtures("our_kernels")

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
ROUNDING = {torch.bfloat16: 2**-8, torch.float32: 2**-21}


def normal(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def linear(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
    return kernels.linear(hidden, kernels.pack(weight), bias)


def check_linear(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Right but for rounding, of the result and of its sums; and the same bits of each alone."""
    output = linear(hidden, weight, bias)
    wanted = hidden.double() @ weight.double().T + (0 if bias is None else bias.double())
    assert output.shape == wanted.shape
    size = hidden.shape[1] / 2
    bound = ROUNDING[output.dtype] * wanted.abs() + 2**-20 * size
    assert ((output.double() - wanted).abs() <= bound).all()
    alone = [linear(token, weight, bias) for token in hidden.split(1)]
    assert torch.equal(torch.cat(alone), output), "the same bits beside others"


@DTYPES
@pytest.mark.usefixtures("threads")
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_linear_layers_of_all_sizes(dtype: torch.dtype, data: st.DataObject) -> None:
    num_tokens, num_outputs, half, seed = (data.draw(st.integers(1, n)) for n in (40, 70, 40, 99))
    hidden = normal(num_tokens, 2 * half, dtype=dtype, seed=seed)
    weight = normal(num_outputs, 2 * half, dtype=dtype, seed=seed + 1)
    has_bias = data.draw(st.booleans())
    check_linear(hidden, weight, normal(num_outputs, dtype=dtype, seed=2) if has_bias else None)


@DTYPES
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("num_inputs", [1100, 2048])
def test_many_tokens_of_many_inputs(dtype: torch.dtype, num_inputs: int) -> None:
    """Tiles take the inputs in several parts then."""
    hidden = normal(97, num_inputs, dtype=dtype, seed=0)
    check_linear(hidden, normal(40, num_inputs, dtype=dtype, seed=1), None)


def test_a_sum_is_rounded_as_torch_rounds_it() -> None:
    halves = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 3.3e38, 1e-39])
    # Twice the half, so that the sum has more digits than an output holds.
    weight = torch.eye(5).repeat(1, 2)
    assert torch.equal(linear((halves / 2).repeat(1, 2), weight, None)[0], halves)
    high = halves.bfloat16()
    low = (halves - high.float()).bfloat16()
    rounded = linear(torch.cat([high, low])[None], weight.bfloat16(), None)
    assert torch.equal(rounded[0, :4], (high.float() + low.float()).bfloat16()[:4])
    odd = torch.tensor([[torch.inf, torch.nan, -torch.inf, 0.0]])
    for dtype in (torch.bfloat16, torch.float32):
        output = linear(odd.to(dtype), torch.eye(4, dtype=dtype), None)
        assert output.isnan().all(), "0 * inf is no number"


def attend(query: Any, key: Any, value: Any, mask: Any, rows: torch.Tensor | None = None) -> Any:
    rows = torch.zeros(query.shape[2], dtype=torch.long) if rows is None else rows
    return kernels.attend(query, key, value, mask, 0.3, rows)


def by_definition(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    groups = query.shape[1] // key.shape[1]
    key, value = (states.double().repeat_interleave(groups, 1) for states in (key, value))
    scores = query.double() @ key.transpose(-1, -2) * 0.3
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num()
    return (weights @ value).transpose(1, 2)


def check_attention(actual: torch.Tensor, *given: torch.Tensor) -> None:
    """As by definition, but for rounding of the weights (by AMX), of sums and of the result."""
    query, key, value, mask = given
    difference = (actual.double() - by_definition(*given)).abs()
    most = by_definition(query, key, value.abs(), mask)
    assert (difference <= 2 * ROUNDING[actual.dtype] * most + 2**-17).all()


@DTYPES
@pytest.mark.usefixtures("threads")
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_attention_of_all_sizes(dtype: torch.dtype, data: st.DataObject) -> None:
    rows, tokens, key_heads = (data.draw(st.integers(1, most)) for most in (3, 20, 3))
    groups, half, extent = (data.draw(st.integers(1, most)) for most in (5, 45, 150))
    seed = data.draw(st.integers(0, 99))
    query = normal(rows, tokens, key_heads * groups, 2 * half, dtype=dtype, seed=seed)
    # Views of more, as a cache gives them.
    key, value = (
        normal(rows, key_heads, extent + 3, 2 * half, dtype=dtype, seed=number)[:, :, :extent]
        for number in (seed + 1, seed + 2)
    )
    chance = torch.rand(rows, 1, tokens, extent, generator=torch.Generator().manual_seed(seed))
    mask = chance < data.draw(st.sampled_from([0.02, 0.5, 1.0]))
    together = query.reshape(1, rows * tokens, -1, 2 * half)
    mask_together = mask.reshape(1, 1, rows * tokens, extent)
    key_rows = torch.arange(rows).repeat_interleave(tokens)
    output = attend(together.transpose(1, 2), key, value, mask_together, rows=key_rows)
    check_attention(output.unflatten(1, (rows, tokens))[0], query.transpose(1, 2), key, value, mask)
    for token in range(rows * tokens):
        observed = mask_together[:, :, token : token + 1]
        end = 1 + int(observed.flatten().nonzero().max()) if observed.any() else 1
        given = key[..., :end, :], value[..., :end, :], observed[..., :end]
        one = together[:, token : token + 1].transpose(1, 2)
        alone = attend(one, *given, rows=key_rows[token : token + 1])
        assert torch.equal(alone[0, 0], output[0, token]), "whatever is beside, or masked"


@DTYPES
def test_scores_that_differ_by_much(dtype: torch.dtype) -> None:
    query = torch.full((1, 1, 1, 2), 30.0, dtype=dtype)
    key = torch.tensor([[40.0, 40], [40, 39.75], [-40, -40], [39, 38]]).to(dtype)[None, None]
    value = normal(1, 1, 4, 2, dtype=dtype, seed=0)
    mask = torch.ones(1, 1, 1, 4, dtype=torch.bool)
    check_attention(attend(query, key, value, mask), query, key, value, mask)


@DTYPES
@pytest.mark.parametrize("dim", [64, 50])
def test_what_is_no_number_is_in_the_outputs_that_see_it_alone(
    dtype: torch.dtype, dim: int
) -> None:
    query = normal(1, 9, 40, dim, dtype=dtype, seed=0)
    states = [normal(1, 3, 100, dim, dtype=dtype, seed=seed) for seed in (1, 2)]
    mask = torch.rand(1, 1, 40, 100, generator=torch.Generator().manual_seed(3)) < 0.7
    wanted = attend(query, states[0], states[1], mask)
    for odd in (torch.nan, torch.inf):
        changed = query.clone()
        changed[0, 4, 5] = odd
        output = attend(changed, states[0], states[1], mask)
        assert not output[0, 5, 4].isfinite().any()
        output[0, 5, 4] = wanted[0, 5, 4]
        assert torch.equal(output, wanted)
    # A key's number is in all of an output, a value's in one place.
    for which, columns in enumerate([slice(None), slice(dim - 1, dim)]):
        for place, odd in ((31, torch.nan), (64, torch.inf), (97, -torch.inf)):
            others = [each.clone() for each in states]
            others[which][0, 1, place, columns] = odd
            output = attend(query, others[0], others[1], mask)
            sees = mask[0, 0, :, place]
            assert not output[0, sees, 3:6, columns].isfinite().any()
            output[0, sees, 3:6, columns] = wanted[0, sees, 3:6, columns]
            assert torch.equal(output, wanted), "the same bits elsewhere"


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        ("library.compiler", lambda: None, "no C++ compiler, so torch's slower kernels are used "),
        ("_library", lambda dtype: Path("no space left\non it").stat(), "ours do not compile ("),
    ],
)
def test_without_kernels_it_is_said_once(
    name: str, function: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with mock.patch(f"{kernels.__name__}.{name}", function), caplog.at_level(logging.WARNING):
        kernels.is_available.cache_clear()
        assert not kernels.is_available(torch.float32)
        assert not kernels.packs(torch.ones(2, 2))
    kernels.is_available.cache_clear()
    [record] = caplog.records
    assert message in record.getMessage()
    assert "\n" not in record.getMessage()
