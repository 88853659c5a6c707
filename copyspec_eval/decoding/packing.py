"""Linear layers that read their weights at the speed of memory, on a CPU in bfloat16 and float32.

A step takes about as long as reading the weights. In torch's layout, they are reordered in every
call; here they are reordered once, for our kernel, or else for oneDNN's. With ours all step widths
have the same bits, with oneDNN's nearly all. Layers that read the same input, such as those of
query, key and value, are multiplied as one, for every call takes time of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers.pytorch_utils import Conv1D

from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.model_copy import weights_state

_packed_weights: WeakKeyDictionary[torch.nn.Module, tuple[Hashable, dict[str, torch.Tensor]]] = (
    WeakKeyDictionary()
)
"""Of each model: the state of its weights, and those that were packed, by the first layer's name.
They lie beside the model's own weights, which log-likelihoods read."""

_siblings: WeakKeyDictionary[torch.nn.Module, list[list[str]]] = WeakKeyDictionary()

_OUTPUTS, _FEWEST_ROWS, _MOST_ROWS = 1 << 19, 16, 1024
"""Outputs of a layer that are compared, in 16 to 1,024 rows: few in a thousand rows may differ."""

_own_kernels: dict[tuple[object, ...], bool] = {}
"""By shape, dtype, bias and threads: whether a single row has a kernel of its own."""


@contextmanager
def packed(
    model: torch.nn.Module, exact: bool = False, siblings: Sequence[Sequence[str]] = ()
) -> Iterator[Hashable]:
    """Run the linear layers of `model` that gain by it on packed weights, then restore them.

    It gives the state of the weights; if they have changed, they are packed anew. Packed weights
    take as much memory again as those layers' own.

    Args:
        model: the model.
        exact: give a single row, where it would have other bits than beside another, a row of
            padding. In bfloat16 these are the layers of many inputs, in float32 all.
        siblings: names of layers that are multiplied as one, as of `linear_siblings`.
    """
    gaining: dict[str, Any] = {
        name: layer
        for name, layer in model.named_modules()
        if type(layer) in (torch.nn.Linear, Conv1D) and _gains(layer)
    }
    first_of = {
        name: names[0] for names in siblings for name in names if gaining.keys() >= {*names}
    }
    together: dict[str, list[Any]] = {}
    for name, layer in gaining.items():
        together.setdefault(first_of.get(name, name), []).append(layer)
    weights = weights_state(model)
    if _packed_weights.get(model, (None,))[0] != weights:
        _packed_weights[model] = weights, {}
    for name, layers in together.items():
        weight = _packed_weight(_packed_weights[model][1], name, layers)
        linear_layer = PackedLinear(
            weight,
            _together([layer.bias for layer in layers]),
            exact and weight.is_mkldnn and _one_row_differs(layers, weight),
            [_matrix(layer).shape[0] for layer in layers],
        )
        for index, layer in enumerate(layers):
            layer.forward = PackedForward(linear_layer, index)
    try:
        yield weights
    finally:
        for layer in gaining.values():
            del layer.forward


@torch.inference_mode()
def linear_siblings(model: torch.nn.Module, forward: Callable[[], object]) -> list[list[str]]:
    """Linear layers of one module that read the same input, which can be multiplied as one.

    Found once for a model, by a look at its inputs in a forward.

    Args:
        model: the model.
        forward: runs it, on anything.
    """
    if model not in _siblings:
        inputs: dict[str, torch.Tensor] = {}
        hooks = [
            layer.register_forward_pre_hook(
                lambda layer, given, name=name: inputs.update({name: given[0]})
            )
            for name, layer in model.named_modules()
            if type(layer) in (torch.nn.Linear, Conv1D)
        ]
        try:
            forward()
        finally:
            for hook in hooks:
                hook.remove()
        found: dict[tuple[object, ...], list[str]] = {}
        for name, given in inputs.items():
            layer = model.get_submodule(name)
            parent = name.rpartition(".")[0]
            key = parent, id(given), type(layer), layer.bias is None, layer.weight.dtype
            found.setdefault(key, []).append(name)
        _siblings[model] = [names for names in found.values() if len(names) > 1]
    return _siblings[model]


@dataclass(slots=True, eq=False)
class PackedLinear:
    """Linear layers of one input on packed weights; see `linear`.

    Attributes:
        weight: of all of them, packed for our kernel or oneDNN's.
        bias: `[outputs]`, of all of them.
        pads: as for `linear`.
        sizes: outputs of each.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    pads: bool
    sizes: Sequence[int]
    _input: torch.Tensor | None = None
    _outputs: list[torch.Tensor | None] = field(default_factory=list)

    def output(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        """What the layer of that index makes of `[…, inputs]`: `[…, outputs]`."""
        if len(self.sizes) == 1:
            return self._multiply(hidden)
        if hidden is not self._input or self._outputs[index] is None:
            both = self._multiply(hidden)
            self._input = hidden
            self._outputs = [part.contiguous() for part in torch.split(both, [*self.sizes], dim=-1)]
        output, self._outputs[index] = self._outputs[index], None
        if not any(part is not None for part in self._outputs):
            self._input = None
        assert output is not None
        return output

    def _multiply(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.weight.is_mkldnn:
            return linear(hidden, self.weight, self.bias, self.pads)
        output: torch.Tensor = torch.ops.copyspec.linear(
            hidden, self.weight, self.bias, sum(self.sizes)
        )
        return output


@dataclass(frozen=True, slots=True)
class PackedForward:
    """The forward of one of the layers of a `PackedLinear`."""

    layers: PackedLinear
    index: int

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[…, inputs]` to `[…, outputs]`."""
        return self.layers.output(self.index, hidden)


def _packed_weight(
    packed_weights: dict[str, torch.Tensor], name: str, layers: Sequence[Any]
) -> torch.Tensor:
    is_ours = kernels.packs(_matrix(layers[0]))
    if name not in packed_weights or packed_weights[name].is_mkldnn == is_ours:
        together = _together([_matrix(layer) for layer in layers])
        assert together is not None
        packed_weights[name] = _pack(together)
    return packed_weights[name]


def _together(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """One after the other; the one itself if it is alone."""
    some = [part for part in parts if part is not None]
    return torch.cat(some).detach() if len(some) > 1 else some[0] if some else None


def _gains(layer: Any) -> bool:
    # A forward that someone has put in place (accelerate's hooks) stays.
    dtype = layer.weight.dtype
    return (
        # A class of its own holds them in another way, as torchao's quantized ones.
        type(layer.weight) in (torch.nn.Parameter, torch.Tensor)
        and "forward" not in vars(layer)
        # Autocast casts what a layer's own forward is given.
        and not torch.is_autocast_enabled("cpu")
        and layer.weight.device.type == "cpu"
        and dtype in (torch.float32, torch.bfloat16)
        and (kernels.packs(_matrix(layer)) or _gains_by_onednn(dtype))
    )


def _gains_by_onednn(dtype: torch.dtype) -> bool:
    return bool(
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and (dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def _matrix(layer: Any) -> torch.Tensor:
    """A view of the weights, `[outputs, inputs]`; GPT-2's layers have them the other way round."""
    weight: torch.Tensor = layer.weight.detach()
    return weight.t() if isinstance(layer, Conv1D) else weight


@torch.inference_mode()
def _pack(weight: torch.Tensor) -> torch.Tensor:
    if kernels.packs(weight):
        return kernels.pack(weight)
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 1)
    return packed


@torch.inference_mode()
def _one_row_differs(layers: Sequence[Any], weight: torch.Tensor) -> bool:
    """Whether a row has other bits alone than beside another; tried once per shape of layer."""
    num_inputs, dtype = _matrix(layers[0]).shape[1], layers[0].weight.dtype
    sizes = [_matrix(layer).shape[0] for layer in layers]
    bias = _together([layer.bias for layer in layers])
    key = (sum(sizes), num_inputs, dtype, bias is None, torch.get_num_threads())
    if key not in _own_kernels:
        source = torch.Generator().manual_seed(0)
        num_rows = min(max(_FEWEST_ROWS, _OUTPUTS // sum(sizes)), _MOST_ROWS)
        rows = torch.randn(num_rows, num_inputs, generator=source).to(dtype)
        alone = torch.cat([linear(row, weight, bias, False) for row in torch.split(rows, 1)])
        beside = torch.cat([linear(pair, weight, bias, False) for pair in torch.split(rows, 2)])
        _own_kernels[key] = not torch.equal(alone, beside)
    return _own_kernels[key]


def linear(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, pads: bool
) -> torch.Tensor:
    """`hidden @ weight.T + bias`, by oneDNN.

    Args:
        hidden: `[…, inputs]`.
        weight: `[outputs, inputs]`, packed.
        bias: `[outputs]`.
        pads: whether a single row is computed beside itself.

    Returns:
        `[…, outputs]`.
    """
    if pads and hidden.numel() == hidden.shape[-1] and hidden.dim() > 1:
        pair = torch.cat([hidden, hidden], -2)
        return linear(pair, weight, bias, pads=False).narrow(-2, 0, 1)
    operation = torch.ops.mkldnn._linear_pointwise
    output: torch.Tensor = operation(hidden, weight, bias, "none", [], "")
    return output
