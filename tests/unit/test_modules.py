"""Which modules get a forward of ours: layers with packed weights, and those of known formulas."""

import copy
import functools
from typing import Any
from unittest import mock

import pytest
import torch
from matrix.shapes import tiny_config
from matrix.shapes import tiny_model as tiny_architecture
from tiny_models import tiny_model
from transformers import LlamaConfig
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.modules import alone, elementwise, engine_kernels
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
def test_norms_and_mlps_are_replaced_by_their_formulas(dtype: torch.dtype) -> None:
    norms: list[Any] = [LlamaRMSNorm(64), GemmaRMSNorm(64), Olmo2RMSNorm(64)]
    norms += [ScaledRMSNorm(64), torch.nn.LayerNorm(64), torch.nn.Linear(4, 4)]
    forwards = [elementwise.norm_forward(initialised(norm, dtype)) for norm in norms]
    assert [forward is None for forward in forwards] == [False] * 3 + [True] * 3
    for kind, activation in ((ScaledMLP, "silu"), (LlamaMLP, "gelu"), (LlamaMLP, "relu")):
        module = mlp(kind, dtype, activation)
        assert elementwise.gated_forward(module, linear_layers(module)) is None


@DTYPES
@torch.inference_mode()
def test_halves_are_rotated_as_transformers_rotates_them(dtype: torch.dtype) -> None:
    query, key = (normal(2, 5, heads, 32, dtype=dtype).transpose(1, 2) for heads in (3, 1))
    angles = normal(2, 5, 32, dtype=dtype)
    for given in ((angles, angles.flip(0)), (angles[:1], angles[1:])):
        wanted = apply_rotary_pos_emb(query, key, *given)
        assert all(map(torch.equal, kernels.rotate((query, key), *given), wanted))


def implementations(config: Any) -> tuple[Any, ...]:
    return config._attn_implementation, config._experts_implementation


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma2", "mixtral"])
def test_a_model_is_after_it_what_it_was_before(model_type: str) -> None:
    model = tiny_model(model_type)
    layer, before = model.model.layers[0], implementations(model.config)
    code = type(layer.self_attn).forward
    with engine_kernels(model, exact=True):
        for module in (layer.input_layernorm, layer.self_attn, layer.self_attn.q_proj):
            assert "forward" in vars(module), module
        assert ("forward" in vars(layer.mlp)) == (model_type != "mixtral")
        assert type(layer.self_attn).forward is code
    assert not [name for name, module in model.named_modules() if "forward" in vars(module)]
    assert implementations(model.config) == before


def test_cosines_and_sines_are_computed_in_whole_vectors() -> None:
    """Those of a rotary embedding whose values fill no vector; they are the module's own."""
    module = LlamaRotaryEmbedding(LlamaConfig(head_dim=6))
    forward, given = alone_forward(module), (torch.zeros(1, 1, 6), torch.arange(37)[None])
    assert forward is not None
    with mock.patch.object(alone, "in_whole_vectors", wraps=alone.in_whole_vectors) as computed:
        angles = forward(*given)
    assert sorted(call.args[0].__name__ for call in computed.call_args_list) == ["cos", "sin"]
    assert all(map(torch.equal, angles, module(*given)))


def test_attention_that_rotates_otherwise_stays() -> None:
    attention = tiny_architecture(tiny_config("glm")).model.layers[0].self_attn
    assert elementwise.attention_forward(attention) is None


class Doubled(torch.nn.Linear):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(hidden)


class Coded(torch.Tensor):
    """As torchao's quantized ones, which only look like a tensor of their dtype."""


@DTYPES
def test_only_plain_layers_are_packed(dtype: torch.dtype) -> None:
    def are_packed() -> list[bool]:
        return [layer in linear_layers(model) for layer in model]

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
    model, forwards = copy.deepcopy(tiny_model("qwen2")), []
    for factor in (1, 1, 2):
        model.lm_head.weight.detach().numpy()[:] *= factor
        with engine_kernels(model, exact=False):
            forwards.append(model.lm_head.forward)
    assert forwards[0] is forwards[1] is not forwards[2]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [1, 2, 17])
@torch.inference_mode()
def test_layers_of_one_input_are_multiplied_as_one(width: int, bias: bool) -> None:
    gate, other, up = (torch.nn.Linear(64, size, bias=bias) for size in (48, 64, 33))
    model = torch.nn.ModuleDict({"gate_proj": gate, "other": other, "up_proj": up})
    forwards = linear_layers(model)
    assert forwards[gate].group is forwards[up].group
    assert forwards[other].group.sizes == [64]
    for hidden in torch.randn(2, 1, width, 64):
        # As a model does; then alone, in any order, and more than once.
        for layer in (gate, other, up, up, up, gate, up):
            given = hidden + 1 if layer is other else hidden
            torch.testing.assert_close(forwards[layer](given), layer(given))
    up.double()
    assert linear_layers(model)[gate].group.sizes == [len(gate.weight)]
