"""Which modules get a forward of ours: layers with packed weights, and those of known formulas."""

import copy
import functools
from typing import Any
from unittest import mock

import pytest
import torch
from tiny_models import tiny_model
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.glm.modeling_glm import apply_rotary_pos_emb as interleaved
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, apply_rotary_pos_emb
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.pytorch_utils import Conv1D

from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.model_copy import model_copy
from copyspec_eval.decoding.modules import elementwise, engine_kernels
from copyspec_eval.decoding.modules.alone import alone_forward
from copyspec_eval.decoding.modules.linear import linear_layers

pytestmark = pytest.mark.usefixtures("our_kernels")

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)


def normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def initialised(module: Any, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    for weight in module.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return module.to(dtype)


class ScaledRMSNorm(LlamaRMSNorm):
    def forward(self, hidden_states: torch.Tensor) -> Any:
        return super().forward(hidden_states) * 1.3


class ScaledMLP(LlamaMLP):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x) * 1.3


@DTYPES
@pytest.mark.parametrize("kind", [LlamaRMSNorm, GemmaRMSNorm, Olmo2RMSNorm])
@torch.inference_mode()
def test_norms_of_known_formulas_are_replaced(kind: Any, dtype: torch.dtype) -> None:
    module = initialised(kind(100, eps=1e-5), dtype)
    forward: Any = elementwise.norm_forward(module)
    hidden = normal(3, 7, 100, dtype=dtype)
    output, wanted = forward(hidden), module(hidden)
    most = 2.0**-7 if dtype == torch.bfloat16 else 2.0**-20
    assert ((output - wanted).abs() <= most * wanted.abs()).all()
    alone = [forward(token) for token in hidden.flatten(0, 1).split(1)]
    assert torch.equal(torch.cat(alone), output.flatten(0, 1))


def mlp(kind: Any, dtype: torch.dtype, activation: str) -> Any:
    config = copy.deepcopy(tiny_model("llama").config)
    config.hidden_act = activation
    return initialised(kind(config), dtype)


@DTYPES
@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
@torch.inference_mode()
def test_gated_mlps_are_replaced_and_hooks_called(activation: str, dtype: torch.dtype) -> None:
    module = mlp(LlamaMLP, dtype, activation)
    layers = linear_layers(module)
    forward: Any = elementwise.gated_forward(module, layers)
    hidden = normal(2, 5, module.hidden_size, dtype=dtype)
    output, wanted = forward(hidden), module(hidden)
    most = 0.05 if dtype == torch.bfloat16 else 1e-4
    assert (output - wanted).abs().max() <= most * wanted.std()
    with module.up_proj.register_forward_hook(observed := mock.Mock(return_value=None)):
        torch.testing.assert_close(forward(hidden), wanted)
    observed.assert_called_once()


@DTYPES
def test_norms_and_mlps_of_other_formulas_stay(dtype: torch.dtype) -> None:
    for norm in (ScaledRMSNorm(64), torch.nn.LayerNorm(64), torch.nn.Linear(4, 4)):
        assert elementwise.norm_forward(initialised(norm, dtype)) is None
    for kind, activation in ((ScaledMLP, "silu"), (LlamaMLP, "gelu"), (LlamaMLP, "relu")):
        module = mlp(kind, dtype, activation)
        assert elementwise.gated_forward(module, linear_layers(module)) is None


@DTYPES
@torch.inference_mode()
def test_only_the_rotation_of_halves_is_ours(dtype: torch.dtype) -> None:
    assert elementwise._rotates_halves(apply_rotary_pos_emb, dtype)
    assert not elementwise._rotates_halves(interleaved, dtype)
    query, key = (normal(2, 5, heads, 32, dtype=dtype).transpose(1, 2) for heads in (3, 1))
    angles = normal(2, 5, 32, dtype=dtype)
    for given in ((angles, angles.flip(0)), (angles[:1], angles[1:])):
        wanted = apply_rotary_pos_emb(query, key, *given)
        assert all(map(torch.equal, kernels.rotate((query, key), *given), wanted))


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma2"])
@torch.inference_mode()
def test_a_model_has_its_own_forwards_before_and_after(model_type: str) -> None:
    model = tiny_model(model_type)
    layer = model.model.layers[0]
    code = type(layer.self_attn).forward
    with engine_kernels(model, exact=True):
        for module in (layer.input_layernorm, layer.mlp, layer.self_attn, layer.self_attn.q_proj):
            assert "forward" in vars(module), module
        assert type(layer.self_attn).forward is code
    assert not [name for name, module in model.named_modules() if "forward" in vars(module)]


@pytest.mark.parametrize("is_complex", [True, False])
def test_rotary_embeddings_of_any_form_are_read_by_position(is_complex: bool) -> None:
    """Llama 4's are complex numbers, others' are cosines and sines."""

    class RotaryEmbedding(torch.nn.Module):
        def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
            angles = (position_ids[..., None] * torch.tensor([1.0, 0.3, 0.1])).to(x.dtype)
            if is_complex:
                return torch.polar(torch.ones_like(angles), angles)
            return angles.cos(), angles.sin()

    module = RotaryEmbedding()
    forward: Any = alone_forward(module)
    hidden, positions = torch.zeros(2, 9, 4), torch.tensor([[*range(9)], [*range(300, 309)]])
    wanted, ours = module(hidden, positions), forward(hidden, positions)
    assert isinstance(ours, tuple) == (not is_complex)
    torch.testing.assert_close(ours, wanted)


@DTYPES
def test_the_layers_of_gpt2_are_packed_too(dtype: torch.dtype) -> None:
    """Their weights stand the other way round; a row has the same bits alone and beside others."""
    layer, rows = initialised(Conv1D(48, 64), dtype), normal(500, 64, dtype=dtype)
    forward = linear_layers(torch.nn.Sequential(layer))[layer]
    with torch.inference_mode():
        together, wanted = forward(rows), layer(rows).double()
        assert torch.equal(torch.cat([forward(row) for row in rows.split(1)]), together)
    assert (together.double() - wanted).abs().max() < 0.05 * wanted.std()


class Doubled(torch.nn.Linear):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(hidden)


class Coded(torch.Tensor):
    """As torchao's quantized ones, which only look like a tensor of their dtype."""


@DTYPES
def test_only_plain_layers_are_packed(dtype: torch.dtype) -> None:
    def are_packed() -> list[bool]:
        forwards = linear_layers(model)
        return [layer in forwards for layer in model]

    model: Any = torch.nn.Sequential(*(kind(8, 8) for kind in (torch.nn.Linear, Doubled) * 2))
    model.to(dtype)
    assert are_packed() == [True, False, True, False]
    with torch.autocast("cpu", torch.bfloat16):
        assert not any(are_packed())
    model[0].forward = functools.partial(torch.nn.Linear.forward, model[0])
    assert are_packed() == [False, False, True, False]
    model[2].weight = torch.nn.Parameter(model[2].weight.detach().as_subclass(Coded))
    assert not any(are_packed())
    model = torch.nn.Sequential(torch.nn.Linear(8, 8).double())
    assert not any(are_packed())


def test_weights_are_packed_once_and_anew_when_they_change() -> None:
    model = model_copy(copy.deepcopy(tiny_model("qwen2"))).model
    with engine_kernels(model, exact=False):
        first = model.lm_head.forward
    with engine_kernels(model, exact=False):
        assert model.lm_head.forward is first
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    with engine_kernels(model, exact=False):
        assert model.lm_head.forward is not first


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [1, 2, 17])
@torch.inference_mode()
def test_layers_of_one_input_are_multiplied_as_one(width: int, bias: bool) -> None:
    gate, other, up = (torch.nn.Linear(64, size, bias=bias) for size in (48, 64, 33))
    model = torch.nn.ModuleDict({"gate_proj": gate, "other": other, "up_proj": up})
    forwards = linear_layers(model)
    assert forwards[gate].group is forwards[up].group
    assert forwards[other].group.num_layers == 1
    for hidden in torch.randn(2, 1, width, 64):
        # As a model does; then alone, in any order, and more than once.
        for layer in (gate, other, up, up, up, gate, up):
            given = hidden + 1 if layer is other else hidden
            output = forwards[layer](given)
            assert output.is_contiguous()
            torch.testing.assert_close(output, layer(given))
    up.double()
    assert linear_layers(model)[gate].group.num_layers == 1
