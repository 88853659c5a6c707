"""Packed weights compute what the layers' own do, and leave the model as it was."""

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tiny_models import tiny_model
from transformers.pytorch_utils import Conv1D

from copyspec_eval.decoding.model_copy import model_copy
from copyspec_eval.decoding.modules import engine_kernels
from copyspec_eval.decoding.modules.linear import linear_layers

pytestmark = pytest.mark.usefixtures("our_kernels")


@contextmanager
def packed(model: torch.nn.Module) -> Iterator[dict[torch.nn.Module, Any]]:
    forwards = linear_layers(model)
    for layer, forward in forwards.items():
        vars(layer)["forward"] = forward
    try:
        yield {**forwards}
    finally:
        for layer in forwards:
            del vars(layer)["forward"]


class Doubled(torch.nn.Linear):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(hidden)


def layers(dtype: torch.dtype) -> torch.nn.Sequential:
    torch.manual_seed(0)
    last = torch.nn.Linear(96, 32, bias=False)
    return torch.nn.Sequential(torch.nn.Linear(64, 96), Doubled(96, 96), last).to(dtype)


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.bfloat16, 0.05), (torch.float32, 1e-5)], ids=str
)
@pytest.mark.parametrize("width", [1, 2, 16, 33])
def test_the_same_numbers_within_rounding(width: int, dtype: torch.dtype, most: float) -> None:
    model = layers(dtype)
    hidden = torch.randn(3, width, 64).to(dtype)
    with torch.inference_mode(), packed(model):
        actual = model(hidden)
    wanted = layers(torch.float64)(hidden.double())
    assert actual.dtype == dtype
    assert actual.shape == (3, width, 32)
    assert (actual.double() - wanted).abs().max() < most * wanted.std()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_layers_of_gpt2_are_packed_too(dtype: torch.dtype) -> None:
    """Their weights stand the other way round; a row has the same bits alone and beside others."""
    torch.manual_seed(0)
    layer = Conv1D(48, 64).to(dtype)
    torch.nn.init.normal_(layer.bias)
    model, rows = torch.nn.Sequential(layer), torch.randn(500, 64).to(dtype)
    wanted = model(rows).double()
    with torch.inference_mode(), packed(model):
        assert "forward" in vars(layer)
        together = model(rows)
        alone = torch.cat([model(row) for row in rows.split(1)])
    assert torch.equal(alone, together)
    assert (together.double() - wanted).abs().max() < 0.05 * wanted.std()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_only_plain_layers_are_packed_and_all_are_given_back(dtype: torch.dtype) -> None:
    model = layers(dtype)
    hooked: Any = model[2]
    theirs = hooked.forward = functools.partial(torch.nn.Linear.forward, hooked)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    with packed(model):
        assert [("forward" in vars(layer)) for layer in model] == [True, False, True]
        assert hooked.forward is theirs
    assert "forward" not in vars(model[0])
    assert hooked.forward is theirs
    assert all(torch.equal(weights[name], now) for name, now in model.state_dict().items())
    with torch.autocast("cpu", torch.bfloat16), packed(model):
        assert not any("forward" in vars(layer) for layer in (model[0], model[1]))
    plain = layers(torch.float64)
    with packed(plain):
        assert not any("forward" in vars(layer) for layer in plain)


def test_weights_are_packed_once_and_anew_when_they_change() -> None:
    model = model_copy(copy.deepcopy(tiny_model("qwen2"))).model
    head: Any = model.lm_head
    hidden = torch.randn(1, 4, head.in_features)
    with engine_kernels(model, exact=False), torch.inference_mode():
        first, before = head.forward, head(hidden)
    assert "forward" not in vars(head)
    with engine_kernels(model, exact=False):
        assert head.forward is first
    with torch.no_grad():
        head.weight.mul_(2)
    with engine_kernels(model, exact=False), torch.inference_mode():
        assert torch.equal(head(hidden), 2 * before)


class Siblings(torch.nn.Module):
    """Two layers that read one input, and one between them that reads another."""

    def __init__(self, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate_proj = torch.nn.Linear(64, 48, bias=bias, dtype=dtype)
        self.other = torch.nn.Linear(64, 64, bias=bias, dtype=dtype)
        self.up_proj = torch.nn.Linear(64, 16, bias=bias, dtype=dtype)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        gate = self.gate_proj(hidden)
        other = self.other(hidden + 1)
        return torch.cat([gate, other, self.up_proj(hidden)], -1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [1, 2, 17])
def test_layers_of_one_input_are_multiplied_as_one(width: int, bias: bool) -> None:
    model: Any = Siblings(bias, torch.float32)
    inputs = [torch.randn(1, width, 64) for _ in range(2)]
    with torch.inference_mode():
        wanted = [model(hidden) for hidden in inputs]
        with packed(model):
            assert model.gate_proj.forward.group is model.up_proj.forward.group
            assert model.other.forward.group.num_layers == 1
            for hidden, right in zip(inputs, wanted, strict=True):
                torch.testing.assert_close(model(hidden), right)
                # Alone, in any order, and more than once.
                for layer in (model.up_proj, model.up_proj, model.gate_proj, model.up_proj):
                    output = layer(hidden)
                    assert output.is_contiguous()
                    native = torch.nn.functional.linear(hidden, layer.weight, layer.bias)
                    torch.testing.assert_close(output, native)


def test_siblings_that_gain_nothing_stay_as_they_are() -> None:
    model = Siblings(True, torch.float64)
    with packed(model):
        assert not any("forward" in vars(layer) for layer in model.children())
    mixed: Any = Siblings(True, torch.float32)
    mixed.up_proj.double()
    with packed(mixed):
        assert mixed.gate_proj.forward.group.num_layers == 1


def test_weights_of_a_class_of_their_own_are_left_alone() -> None:
    """As torchao's quantized ones, which only look like a tensor of their dtype."""

    class Coded(torch.Tensor):
        pass

    model: Any = layers(torch.float32)
    model[0].weight = torch.nn.Parameter(model[0].weight.detach().as_subclass(Coded))
    assert isinstance(model[0].weight, Coded)
    with packed(model):
        assert ["forward" in vars(layer) for layer in model] == [False, False, True]
