"""Forwards that compute every token alone, for modules that have no linear layer of torch's class.

torch computes the values after the last whole vector of a tensor, or of a thread's share of it, by
other code than the rest. That can change the last bit of a sigmoid or a cosine, and where it falls
depends on how many tokens there are. Routers and experts, too, multiply by matrices of their own.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from transformers.activations import ACT2CLS
from transformers.pytorch_utils import Conv1D

from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.modules.linear import Forward

_VECTORS = 64
"""Values: two vectors of the widest kind, in bfloat16; torch's loops take as many at a time."""
_PIECE = 511 * _VECTORS
"""Values that torch leaves to one thread: under 32,768."""

_ACTIVATIONS = {
    torch.nn.Softplus,
    *(kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values()),
} - {torch.nn.PReLU}
_FUNCTIONS = {torch.sigmoid, torch.tanh, torch.exp, F.silu, F.gelu, F.softplus, F.sigmoid, F.tanh}
_FUNCTIONS |= {torch.cos, torch.sin, torch.Tensor.cos, torch.Tensor.sin}
_MATRIX_CLASSES = (torch.nn.Linear, torch.nn.Embedding, Conv1D)


def alone_forward(module: torch.nn.Module) -> Forward | None:
    """A forward for activations, rotary embeddings, routers and experts on a CPU; else None."""
    if type(module) in _ACTIVATIONS:
        return functools.partial(in_whole_vectors, type(module).forward.__get__(module))
    has_matrix = any(weight.dim() > 1 for weight in module.parameters(recurse=False))
    is_rotary = "RotaryEmbedding" in type(module).__name__
    if is_rotary or (has_matrix and not isinstance(module, _MATRIX_CLASSES)):
        return _TokenByToken(module)
    return None


def in_whole_vectors(
    function: Callable[..., torch.Tensor], values: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """An elementwise `function(values)`, with bits that do not depend on how many values there are.

    >>> in_whole_vectors(torch.exp, torch.zeros(2, 3)).shape
    torch.Size([2, 3])
    """
    count = values.numel()
    if count % _VECTORS == 0 and count <= _PIECE and values.is_contiguous():
        return function(values, *args, **kwargs)
    flat = F.pad(values.reshape(-1), (0, -count % _VECTORS))
    pieces = [function(piece, *args, **kwargs) for piece in torch.split(flat, _PIECE)]
    return torch.cat(pieces)[:count].view(values.shape)


class _TokenByToken(TorchFunctionMode):
    """A module whose products go through our kernel, and functions in whole vectors."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self._forward = type(module).forward.__get__(module)
        weights = module.parameters(recurse=False)
        self._storages = {weight.untyped_storage().data_ptr() for weight in weights}
        self._packed: dict[Any, kernels.PackedWeights] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self:
            return self._forward(*args, **kwargs)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            return self._linear(*args, **kwargs)
        if func in _FUNCTIONS:
            return in_whole_vectors(func, *args, **kwargs)
        return func(*args, **kwargs)

    def _linear(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        if not kernels.packs(weight) or input.dtype != weight.dtype:
            return F.linear(input, weight, bias)
        key = weight.data_ptr(), weight.shape, weight.stride()
        packed = self._packed.get(key) or kernels.pack(weight)
        # A tensor of another storage is a cast one, which lives no longer than this call.
        if weight.untyped_storage().data_ptr() in self._storages:
            self._packed[key] = packed
        return kernels.linear(input, packed, bias)
