"""Linear layers that read their weights at the speed of memory, on a CPU in bfloat16 and float32.

A step takes about as long as reading the weights. torch reorders them in every call; here they are
packed once, for our kernel. Layers that read the same input, e.g. those of query, key and value,
are multiplied as one: every call takes time.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from copyspec_eval.decoding import kernels

_SIBLINGS = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
)
"""Names of layers that read one input, in the order in which they run. If a model gives them
different inputs, the results stay right, but each call computes the whole group."""

Forward = Callable[..., Any]


class PackedGroup:
    """Linear layers of one kind and one input, on packed weights beside the model's own."""

    def __init__(self, layers: Sequence[Any]) -> None:
        matrices = [_matrix(layer) for layer in layers]
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        self._bias = torch.cat(biases) if biases else None
        self._weights = kernels.pack(torch.cat(matrices))
        self.sizes = [len(matrix) for matrix in matrices]
        self._input: torch.Tensor | None = None
        self._outputs: tuple[torch.Tensor, ...] = ()

    def outputs(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the layers make of `[…, inputs]`, side by side: `[…, sum of sizes]`."""
        return kernels.linear(hidden, self._weights, self._bias)

    def output(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        """The output of one layer; the first to be asked computes those of all."""
        if hidden is not self._input:
            self._input, self._outputs = hidden, torch.split(self.outputs(hidden), self.sizes, -1)
        output = self._outputs[index]
        if index == len(self.sizes) - 1:
            self._input, self._outputs = None, ()
        return output


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """The forward of one layer of a group."""

    group: PackedGroup
    index: int

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.group.output(self.index, hidden)


def linear_layers(model: torch.nn.Module) -> dict[torch.nn.Module, PackedLayer]:
    """Forwards on packed weights, which take as much memory again as the layers' own.

    Layers of a module that `_SIBLINGS` names together are multiplied as one.
    """
    packed: dict[torch.nn.Module, PackedLayer] = {}
    for module in model.modules():
        layers = {name: child for name, child in module.named_children() if _gains(child)}
        groups = [names for names in _SIBLINGS if layers.keys() >= {*names}]
        groups = [names for names in groups if len({*map(_kind, map(layers.get, names))}) == 1]
        grouped = {name for names in groups for name in names}
        for names in [*groups, *((name,) for name in layers if name not in grouped)]:
            group = PackedGroup([layers[name] for name in names])
            packed |= {layers[name]: PackedLayer(group, at) for at, name in enumerate(names)}
    return packed


def _kind(layer: Any) -> Hashable:
    matrix = _matrix(layer)
    return matrix.dtype, matrix.shape[1], layer.bias is None


def _gains(layer: Any) -> bool:
    """Whether a module is a plain linear layer whose weights can be packed."""
    # A forward that someone has put in place (accelerate's hooks) stays.
    return (
        type(layer) in (torch.nn.Linear, Conv1D)
        # Others hold them in another way, e.g. torchao's, or compute them in a hook, e.g. pruning.
        and type(layer.weight) is torch.nn.Parameter
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
