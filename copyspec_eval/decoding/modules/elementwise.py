"""Norms, gated MLPs and rotary embeddings in one pass each, in place of a dozen small operations.

A module is replaced if it looks like one of these and a trial on random inputs gives what its own
forward gives, so that models with another formula keep theirs.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any, get_args

import torch

from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.modules.linear import Forward, PackedLayer

_ROUNDING = {torch.bfloat16: 2.0**-7, torch.float32: 2.0**-20}
"""Between two ways to compute one value: an ulp or two."""
_ROUNDING_OF_SUMS = {torch.bfloat16: 2.0**-4, torch.float32: 2.0**-13}
"""Of sums of many products, in standard deviations of the sums."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_ROTATE = "apply_rotary_pos_emb"
"""Name of the function in transformers' models."""


def norm_forward(module: Any) -> Forward | None:
    """A forward for an RMS norm: `hidden / rms(hidden) * (weight or 1 + weight)`."""
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    parameters = dict(module.named_parameters())
    if "Norm" not in type(module).__name__ or not isinstance(epsilon, float):
        return None
    if [*parameters] != ["weight"] or parameters["weight"].dim() != 1 or [*module.buffers()]:
        return None
    weight = parameters["weight"].detach()
    if not kernels.takes(weight):
        return None
    inputs = _random(3, len(weight), dtype=weight.dtype) * torch.tensor([[1], [1e-3], [30]])
    inputs = inputs.to(weight.dtype)
    wanted = _tried(type(module).forward, module, inputs)
    for offset, rounds_first in itertools.product((0.0, 1.0), (True, False)):
        scales = (weight.float() + offset).contiguous()
        forward = functools.partial(
            kernels.rms_norm, weight=scales, epsilon=epsilon, rounds_first=rounds_first
        )
        if _close(forward(inputs), wanted):
            return forward
    return None


def gated_forward(module: Any, layers: Mapping[torch.nn.Module, PackedLayer]) -> Forward | None:
    """A forward for an MLP: `down_proj(act_fn(gate_proj(hidden)) * up_proj(hidden))`."""
    names = ("gate_proj", "up_proj", "down_proj")
    parts = [layers.get(getattr(module, name, module)) for name in names]
    gate, up, down = parts
    if gate is None or up is None or down is None or gate.group is not up.group:
        return None
    group, weight = gate.group, module.gate_proj.weight
    kind = _activation(getattr(module, "act_fn", None), weight.dtype)
    if kind is None or (gate.index, up.index, len(group.sizes)) != (0, 1, 2):
        return None

    skipped = [vars(part) for part in (module.gate_proj, module.up_proj, module.act_fn)]
    skipped_hooks = [part[name] for part in skipped for name in _HOOKS if name in part]

    def forward(hidden: torch.Tensor) -> Any:
        if any(skipped_hooks):
            return type(module).forward(module, hidden)
        return module.down_proj(kernels.gate(group.outputs(hidden), kind))

    inputs = _random(5, weight.shape[1], dtype=weight.dtype) * 4
    ours = down(kernels.gate(group.outputs(inputs), kind))
    error = _ROUNDING_OF_SUMS[ours.dtype] * float(ours.std())
    return forward if _close(ours, _tried(type(module).forward, module, inputs), error) else None


def _activation(function: Any, dtype: torch.dtype) -> kernels.Activation | None:
    inputs = torch.linspace(-30, 30, 1024, dtype=dtype)
    wanted = _tried(function, inputs)
    kind: kernels.Activation
    for kind in get_args(kernels.Activation):
        ours = kernels.gate(torch.cat([inputs, torch.ones_like(inputs)]), kind)
        if _close(ours, wanted, _ROUNDING[dtype]):
            return kind
    return None


def attention_forward(module: Any) -> Forward | None:
    """The forward of an attention layer, with our kernel for the rotary embedding that it calls."""
    forward = type(module).forward
    code = getattr(forward, "__code__", None)
    if code is None or _ROTATE not in code.co_names:
        return None
    rotate = forward.__globals__.get(_ROTATE)
    weight = next(module.parameters(), None)
    if rotate is None or weight is None or not kernels.takes(weight):
        return None
    if not _rotates_halves(rotate, weight.dtype):
        return None
    return MethodType(_with_our_rotation(forward, rotate), module)


@functools.cache
def _with_our_rotation(forward: FunctionType, rotate: Callable[..., Any]) -> FunctionType:
    """A copy of a function that calls our rotation; what it was copied from stays as it is."""

    def ours(q: Any, k: Any, cos: Any, sin: Any, *args: Any, **kwargs: Any) -> Any:
        fits = cos.dim() == 3 and q.dtype == k.dtype == cos.dtype == sin.dtype
        if args or kwargs or not fits or not q.shape[-1] == k.shape[-1] == cos.shape[-1]:
            return rotate(q, k, cos, sin, *args, **kwargs)
        return kernels.rotate((q, k), cos, sin)

    changed = FunctionType(
        forward.__code__,
        forward.__globals__ | {_ROTATE: ours},
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    changed.__kwdefaults__ = forward.__kwdefaults__
    return changed


@functools.cache
def _rotates_halves(rotate: Callable[..., Any], dtype: torch.dtype) -> bool:
    query, key = _random(2, 3, 5, 16, dtype=dtype), _random(2, 1, 5, 16, dtype=dtype)
    cosines, sines = _random(2, 5, 16, dtype=dtype), _random(2, 5, 16, dtype=dtype)[[1, 0]]
    wanted = _tried(rotate, query, key, cosines, sines)
    ours = kernels.rotate((query, key), cosines, sines)
    return isinstance(wanted, tuple) and len(wanted) == 2 and all(map(torch.equal, ours, wanted))


def _random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def _tried(function: Callable[..., Any], *args: Any) -> Any:
    """What it gives; None if it is something else, and fails."""
    try:
        return function(*args)
    except Exception:
        return None


def _close(ours: torch.Tensor, wanted: Any, error: float | None = None) -> bool:
    """Whether they are equal within an error of all values, or by default within rounding."""
    if not isinstance(wanted, torch.Tensor):
        return False
    if (ours.shape, ours.dtype) != (wanted.shape, wanted.dtype):
        return False
    rtol, atol = (_ROUNDING[ours.dtype], 1e-30) if error is None else (0.0, error)
    return torch.allclose(ours.float(), wanted.float(), rtol, atol)
