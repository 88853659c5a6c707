"""Linear layers that read their weights at the speed of memory, on a CPU in bfloat16 and float32.

A step takes about as long as reading the weights. In torch's layout, they are reordered in every
call; here oneDNN reorders them once. Besides, nearly all step widths then have the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers.pytorch_utils import Conv1D

_State = tuple[int, int]

_packed_weights: WeakKeyDictionary[torch.nn.Module, tuple[_State, torch.Tensor]] = (
    WeakKeyDictionary()
)
"""Kept as long as the layer, beside its own weights, which log-likelihoods keep reading."""

_OUTPUTS, _FEWEST_ROWS, _MOST_ROWS = 1 << 19, 16, 1024
"""Outputs of a layer that are compared, in 16 to 1,024 rows: few in a thousand rows may differ."""

_own_kernels: dict[tuple[object, ...], bool] = {}
"""By shape, dtype, bias and threads: whether a single row has a kernel of its own."""


@contextmanager
def packed(model: torch.nn.Module, exact: bool = False) -> Iterator[None]:
    """Run the linear layers of `model` that gain by it on packed weights, then restore them.

    The first time takes as much memory again as those layers' weights.

    Args:
        model: the model.
        exact: give a single row, where it would have other bits than beside another, a row of
            padding. In bfloat16 these are the layers of many inputs, in float32 all.
    """
    layers: list[Any] = [
        layer
        for layer in model.modules()
        if type(layer) in (torch.nn.Linear, Conv1D) and _gains(layer)
    ]
    for layer in layers:
        # A model may be trained on between two evaluations.
        version = 0 if layer.weight.is_inference() else layer.weight._version
        state = layer.weight.data_ptr(), version
        if layer not in _packed_weights or _packed_weights[layer][0] != state:
            _packed_weights[layer] = state, _pack(_matrix(layer))
        weight = _packed_weights[layer][1]
        pads = exact and _one_row_differs(layer, weight)
        forward = partial(_linear_of_two if pads else _linear, layer, weight)
        layer.forward = forward
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _gains(layer: Any) -> bool:
    # A forward that someone has put in place (accelerate's hooks) stays.
    dtype = layer.weight.dtype
    return (
        "forward" not in vars(layer)
        # Autocast casts what a layer's own forward is given.
        and not torch.is_autocast_enabled("cpu")
        and layer.weight.device.type == "cpu"
        and dtype in (torch.float32, torch.bfloat16)
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and (dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def _matrix(layer: Any) -> torch.Tensor:
    """A view of the weights, `[outputs, inputs]`; GPT-2's layers have them the other way round."""
    weight: torch.Tensor = layer.weight.detach()
    return weight.t() if isinstance(layer, Conv1D) else weight


@torch.inference_mode()
def _pack(weight: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 1)
    return packed


@torch.inference_mode()
def _one_row_differs(layer: Any, weight: torch.Tensor) -> bool:
    """Whether a row has other bits alone than beside another; tried once per shape of layer."""
    shape, dtype = _matrix(layer).shape, layer.weight.dtype
    key = (*shape, dtype, layer.bias is None, torch.get_num_threads())
    if key not in _own_kernels:
        source = torch.Generator().manual_seed(0)
        num_rows = min(max(_FEWEST_ROWS, _OUTPUTS // shape[0]), _MOST_ROWS)
        rows = torch.randn(num_rows, shape[1], generator=source).to(dtype)
        alone = torch.cat([_linear(layer, weight, row) for row in torch.split(rows, 1)])
        beside = torch.cat([_linear(layer, weight, pair) for pair in torch.split(rows, 2)])
        _own_kernels[key] = not torch.equal(alone, beside)
    return _own_kernels[key]


def _linear_of_two(layer: Any, weight: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """As `_linear`, a single row beside itself."""
    if hidden.numel() != hidden.shape[-1] or hidden.dim() == 1:
        return _linear(layer, weight, hidden)
    return _linear(layer, weight, torch.cat([hidden, hidden], -2)).narrow(-2, 0, 1)


def _linear(layer: Any, weight: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
        hidden, weight, layer.bias, "none", [], ""
    )
    return output
