"""Linear layers that read their weights at the speed of memory, on a CPU in bfloat16 and float32.

A step takes about as long as reading the weights. torch reorders them in every call; here they are
packed once, for our kernel. Layers that read the same input, e.g. those of
query, key and value, are multiplied as one: every call takes time of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers.pytorch_utils import Conv1D

from copyspec_eval.decoding import kernels

_siblings: WeakKeyDictionary[torch.nn.Module, list[list[str]]] = WeakKeyDictionary()

Forward = Callable[..., Any]


class PackedGroup:
    """Linear layers of one kind and one input, on packed weights beside the model's own."""

    def __init__(self, layers: Sequence[Any]) -> None:
        matrices = [_matrix(layer) for layer in layers]
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        self.num_layers = len(layers)
        self._bias = torch.cat(biases) if biases else None
        self._weights = kernels.pack(matrices)
        self._input: torch.Tensor | None = None
        self._outputs: list[torch.Tensor] = []

    def outputs(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        """What the layers make of `[…, inputs]`: `[…, outputs]` of each."""
        return kernels.linear(hidden, self._weights, self._bias)

    def output(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        """The output of one layer; the first to be asked computes those of all."""
        if hidden is not self._input:
            self._input, self._outputs = hidden, self.outputs(hidden)
        output = self._outputs[index]
        if index == self.num_layers - 1:
            self._input, self._outputs = None, []
        return output


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """The forward of one layer of a group."""

    group: PackedGroup
    index: int

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[…, inputs]` to `[…, outputs]`."""
        return self.group.output(self.index, hidden)


def linear_layers(
    model: torch.nn.Module, siblings: Sequence[Sequence[str]]
) -> dict[torch.nn.Module, PackedLayer]:
    """Forwards on packed weights, which take as much memory again as the layers' own.

    Layers of `siblings`, as of `linear_siblings`, are multiplied as one.
    """
    layers = {name: layer for name, layer in model.named_modules() if _gains(layer)}
    groups = [list(names) for names in siblings if layers.keys() >= {*names}]
    grouped = {name for names in groups for name in names}
    groups += [[name] for name in layers if name not in grouped]
    packed: dict[torch.nn.Module, PackedLayer] = {}
    for names in groups:
        group = PackedGroup([layers[name] for name in names])
        packed |= {layers[name]: PackedLayer(group, index) for index, name in enumerate(names)}
    return packed


@torch.inference_mode()
def linear_siblings(model: torch.nn.Module, forward: Callable[[], object]) -> list[list[str]]:
    """Names of a module's linear layers that read the same input, in the order in which they run.

    Looked for once per model, at its inputs in a `forward` of anything.
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
        groups: dict[tuple[object, ...], list[str]] = {}
        for name, given in inputs.items():
            layer = model.get_submodule(name)
            parent = name.rpartition(".")[0]
            key = parent, id(given), type(layer), layer.bias is None, layer.weight.dtype
            groups.setdefault(key, []).append(name)
        _siblings[model] = [names for names in groups.values() if len(names) > 1]
    return _siblings[model]


def _gains(layer: Any) -> bool:
    """Whether a module is a plain linear layer whose weights can be packed."""
    # A forward that someone has put in place (accelerate's hooks) stays.
    return (
        type(layer) in (torch.nn.Linear, Conv1D)
        # A class of its own holds them in another way, as torchao's quantized ones.
        and type(layer.weight) in (torch.nn.Parameter, torch.Tensor)
        and "forward" not in vars(layer)
        # Autocast casts what a layer's own forward is given.
        and not torch.is_autocast_enabled("cpu")
        and (layer.bias is None or layer.bias.dtype == layer.weight.dtype)
        and kernels.packs(_matrix(layer))
    )


def _matrix(layer: Any) -> torch.Tensor:
    """A view of the weights, `[outputs, inputs]`; GPT-2's layers have them the other way round."""
    weight: torch.Tensor = layer.weight.detach()
    return weight.t() if isinstance(layer, Conv1D) else weight
