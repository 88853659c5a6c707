"""Packed weights compute what the layers' own do, and leave the model as it was."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from tiny_models import tiny_model
from transformers.pytorch_utils import Conv1D

from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.packing import PackedLinear, linear_siblings, packed

pytestmark = pytest.mark.usefixtures("either_kernels")


def packs(dtype: torch.dtype) -> bool:
    """Ours multiply in bfloat16 on every processor, oneDNN's on those that it finds able to."""
    return (
        dtype == torch.float32
        or kernels.is_available()
        or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


class Doubled(torch.nn.Linear):
    """Its forward is its own business."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(hidden)


def layers(dtype: torch.dtype) -> torch.nn.Sequential:
    torch.manual_seed(0)
    made = torch.nn.Sequential(
        torch.nn.Linear(64, 96), Doubled(96, 96), torch.nn.Linear(96, 32, bias=False)
    )
    return made.to(dtype)


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.bfloat16, 0.05), (torch.float32, 1e-5)], ids=str
)
@pytest.mark.parametrize("width", [1, 2, 16, 33])
def test_the_same_numbers_within_rounding(width: int, dtype: torch.dtype, most: float) -> None:
    model = layers(dtype)
    hidden = torch.randn(3, width, 64).to(dtype)
    with torch.inference_mode(), packed(model):
        found = model(hidden)
    wanted = layers(torch.float64)(hidden.double())
    assert found.dtype == dtype
    assert found.shape == (3, width, 32)
    assert (found.double() - wanted).abs().max() < most * wanted.std()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_layers_of_gpt2_are_packed_too(dtype: torch.dtype) -> None:
    """Their weights stand the other way round; a row has the same bits alone and beside others."""
    torch.manual_seed(0)
    layer = Conv1D(48, 64).to(dtype)
    torch.nn.init.normal_(layer.bias)
    model, rows = torch.nn.Sequential(layer), torch.randn(500, 64).to(dtype)
    wanted = model(rows).double()
    with torch.inference_mode(), packed(model, exact=True):
        assert ("forward" in vars(layer)) == packs(dtype)
        together = model(rows)
        alone = torch.cat([model(row) for row in rows.split(1)])
    if packs(dtype):
        assert torch.equal(alone, together)
    assert (together.double() - wanted).abs().max() < 0.05 * wanted.std()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_only_plain_layers_are_packed_and_all_are_given_back(dtype: torch.dtype) -> None:
    model = layers(dtype)
    hooked: Any = model[2]
    theirs = hooked.forward = functools.partial(torch.nn.Linear.forward, hooked)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    with packed(model):
        assert [("forward" in vars(layer)) for layer in model] == [packs(dtype), False, True]
        assert hooked.forward is theirs
        with packed(model):
            pass
        assert ("forward" in vars(model[0])) == packs(dtype), "the inner one leaves the outer one's"
    assert "forward" not in vars(model[0])
    assert hooked.forward is theirs
    assert all(torch.equal(weights[name], now) for name, now in model.state_dict().items())
    with torch.autocast("cpu", torch.bfloat16), packed(model):
        assert not any("forward" in vars(layer) for layer in (model[0], model[1]))
    plain = layers(torch.float64)
    with packed(plain):
        assert not any("forward" in vars(layer) for layer in plain)


@pytest.mark.parametrize("shape", [(1, 96), (1, 1, 96), (1, 3, 96), (2, 1, 96)])
def test_a_row_of_padding_changes_no_shape_and_nothing_beyond_rounding(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "is_available", lambda: False)
    monkeypatch.setattr("copyspec_eval.decoding.packing._one_row_differs", lambda *given: True)
    layer = torch.nn.Sequential(torch.nn.Linear(96, 8))
    hidden = torch.randn(shape)
    with torch.inference_mode():
        with packed(layer, exact=True):
            padded = layer(hidden)
            beside = layer(torch.cat([hidden, hidden.flip(-1)], -2))
        wanted = layer(hidden)
    assert padded.shape == wanted.shape == (*shape[:-1], 8)
    torch.testing.assert_close(padded, wanted)
    if hidden.numel() == 96:
        assert torch.equal(padded, beside.narrow(-2, 0, 1)), "the bits of a row among several"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_in_exact_mode_a_row_has_the_bits_that_it_has_among_others(dtype: torch.dtype) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(2048, 64)).to(dtype)
    rows = torch.randn(64, 2048).to(dtype)
    with torch.inference_mode(), packed(layer, exact=True):
        if "forward" not in vars(layer[0]):
            pytest.skip("NOT TESTED: this processor packs nothing of this type")
        together = layer(rows)
        assert all(torch.equal(layer(rows[i : i + 1]), together[i : i + 1]) for i in range(64))


def test_weights_are_packed_once() -> None:
    model = tiny_model("qwen2")
    with packed(model):
        first = model.lm_head.forward.layers.weight
    with packed(model):
        assert model.lm_head.forward.layers.weight is first


def test_weights_that_changed_are_packed_anew() -> None:
    model = layers(torch.bfloat16)
    hidden = torch.randn(1, 4, 64).bfloat16()
    with torch.inference_mode(), packed(model):
        before = model(hidden)
    with torch.no_grad():
        next(model[2].parameters()).mul_(2)
    with torch.inference_mode(), packed(model):
        assert torch.equal(model(hidden), 2 * before)


class Siblings(torch.nn.Module):
    """Two layers that read one input, and one between them that reads another."""

    def __init__(self, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query = torch.nn.Linear(64, 48, bias=bias, dtype=dtype)
        self.other = torch.nn.Linear(64, 64, bias=bias, dtype=dtype)
        self.key = torch.nn.Linear(64, 16, bias=bias, dtype=dtype)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query = self.query(hidden)
        other = self.other(hidden + 1)
        return torch.cat([query, other, self.key(hidden)], -1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [1, 2, 17])
def test_layers_of_one_input_are_multiplied_as_one(
    width: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Siblings(bias, torch.float32)
    inputs = [torch.randn(1, width, 64) for _ in range(2)]
    multiplied: list[int] = []

    multiply: Any = PackedLinear._multiply

    def counting(self: PackedLinear, hidden: torch.Tensor) -> Any:
        multiplied.append(sum(self.sizes))
        return multiply(self, hidden)

    monkeypatch.setattr(PackedLinear, "_multiply", counting)
    with torch.inference_mode():
        siblings = linear_siblings(model, lambda: model(inputs[0]))
        assert siblings == [["query", "key"]]
        wanted = [model(hidden) for hidden in inputs]
        with packed(model, siblings=siblings):
            for hidden, right in zip(inputs, wanted, strict=True):
                multiplied.clear()
                torch.testing.assert_close(model(hidden), right)
                assert sorted(multiplied) == [64, 64]
                # Alone, in any order, and more than once.
                for layer in (model.key, model.key, model.query, model.key):
                    output = layer(hidden)
                    assert output.is_contiguous()
                    own = torch.nn.functional.linear(hidden, layer.weight, layer.bias)
                    torch.testing.assert_close(output, own)
    assert linear_siblings(model, pytest.fail) == siblings, "looked at once"


def test_siblings_that_gain_nothing_stay_as_they_are() -> None:
    model = Siblings(True, torch.float64)
    with packed(model, siblings=[["query", "key"]]):
        assert not any("forward" in vars(layer) for layer in model.children())
    mixed: Any = Siblings(True, torch.float32)
    mixed.key.double()
    with packed(mixed, siblings=[["query", "key"]]):
        assert mixed.query.forward.layers.sizes == [48]


def test_of_siblings_one_that_changed_has_them_packed_anew() -> None:
    model = Siblings(True, torch.float32)
    hidden = torch.randn(1, 3, 64)
    siblings = [["query", "key"]]
    with torch.inference_mode(), packed(model, siblings=siblings):
        model(hidden)
    with torch.no_grad():
        model.key.weight.mul_(2)
        model.query.bias.zero_()
    with torch.inference_mode():
        wanted = model(hidden)
        with packed(model, siblings=siblings):
            torch.testing.assert_close(model(hidden), wanted)


def test_weights_of_a_class_of_their_own_are_left_alone() -> None:
    """As torchao's quantized ones, which only look like a tensor of their dtype."""
    model: Any = layers(torch.float32)

    class Coded(torch.Tensor):
        pass

    coded = model[0].weight.detach().as_subclass(Coded)
    model[0].weight = torch.nn.Parameter(coded)
    assert isinstance(model[0].weight, Coded)
    with packed(model):
        assert "forward" not in vars(model[0])
        assert "forward" in vars(model[2])
