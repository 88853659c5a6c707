"""Linear layers that read their weights at the speed of memory, on a CPU in bfloat16.

A step takes about as long as reading the weights. In torch's layout, oneDNN reorders them in every
call; here they are reordered once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from weakref import WeakKeyDictionary

import torch

_State = tuple[int, int]

_packed_weights: WeakKeyDictionary[torch.nn.Module, tuple[_State, torch.Tensor]] = (
    WeakKeyDictionary()
)
"""Kept as long as the layer, beside its own weights, which log-likelihoods keep reading."""


@contextmanager
def packed(model: torch.nn.Module) -> Iterator[None]:
    """Run the linear layers of `model` that gain by it on packed weights, then restore them.

    The first time takes as much memory again as those layers' weights.
    """
    layers = [
        layer for layer in model.modules() if type(layer) is torch.nn.Linear and _gains(layer)
    ]
    for layer in layers:
        # A model may be trained on between two evaluations.
        version = 0 if layer.weight.is_inference() else layer.weight._version
        state = layer.weight.data_ptr(), version
        if layer not in _packed_weights or _packed_weights[layer][0] != state:
            _packed_weights[layer] = state, _pack(layer.weight.detach())
        forward = partial(_linear, layer, _packed_weights[layer][1])
        layer.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _gains(layer: torch.nn.Linear) -> bool:
    # A forward that someone has put in place (accelerate's hooks) stays.
    return (
        "forward" not in vars(layer)
        and layer.weight.device.type == "cpu"
        and layer.weight.dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


@torch.inference_mode()
def _pack(weight: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
    return packed


def _linear(layer: torch.nn.Linear, weight: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
        hidden, weight, layer.bias, "none", [], ""
    )
    return output
