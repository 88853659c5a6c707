"""Our kernels for a CPU, in bfloat16 and float32: C++, compiled where it runs.

Each computes every token alone: its bits do not depend on what stands beside it. Where there is no
C++ compiler, torch's kernels are used. Every argument is checked before its address is passed on.
"""

import ctypes
import functools
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Any, Literal

import torch

from copyspec_eval.announced import announced
from copyspec_eval.decoding.kernels import library
from copyspec_eval.decoding.kernels.library import logger
from copyspec_eval.decoding.memory import empty_in_huge_pages

_DTYPES = torch.bfloat16, torch.float32
_BLOCK, _WORDS = 32, 16
"""Outputs of a linear layer that are stored together, and the multiple, in words, to which inputs
are padded; see linear.cpp."""

Activation = Literal["silu", "gelu_tanh"]

_STRUCTS = {
    "attend": Struct("7Q16q2d"),
    "pack": Struct("2Q3q"),
    "linear": Struct("4Q4q"),
    "rms_norm": Struct("3Q2qdq"),
    "rotate": Struct("4Q8q"),
    "gate": Struct("2Q3q"),
    "write_states": Struct("6Q10q"),
}
"""The kernels' arguments, in words of 64 bits; see the sources."""


_recorded: ContextVar[list[Callable[[], Any]] | None] = ContextVar("calls", default=None)


@functools.cache
def is_available(dtype: torch.dtype) -> bool:
    """Whether a dtype's kernels compile here: seconds, once; the user's cache keeps them."""
    if dtype not in _DTYPES:
        return False
    if library.compiler() is None:
        logger.warning(
            "no C++ compiler, so torch's slower kernels are used (exact mode then pads every step, "
            "exact=false does not); install g++"
        )
        return False
    try:
        tiles = hasattr(_library(dtype), "uses_tiles")
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", None) or str(error).encode()
        reason = output.decode(errors="replace").strip().partition("\n")[0]
        logger.warning("torch's slower kernels are used: ours do not compile (%s)", reason)
        return False
    name = str(dtype).removeprefix("torch.")
    logger.info("kernels: copyspec's for %s, with%s AMX", name, "" if tiles else "out")
    return True


def serve(model: torch.nn.Module) -> bool:
    """Whether the kernels serve any of a model's weights."""
    return any(packs(weight) for weight in model.parameters())


def takes(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu and is_available(tensor.dtype)


def attends(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
) -> bool:
    return (
        takes(query)
        and query.dtype == key.dtype == value.dtype
        and query.shape[-1] % 2 == 0
        and mask.dtype == torch.bool
        and mask.shape[:2] == (1, 1)
    )


def packs(weight: torch.Tensor) -> bool:
    """Whether `pack` takes such weights, `[outputs, inputs]`."""
    # A word of 32 bits has two of bfloat16.
    return takes(weight) and weight.dim() > 0 and weight.shape[-1] % 2 == 0


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeights:
    """Weights of a linear layer, laid out as in linear.cpp."""

    words: torch.Tensor
    num_inputs: int
    num_outputs: int
    num_words: int  # of an output


def pack(weight: torch.Tensor) -> PackedWeights:
    """Weights `[outputs, inputs]`, for `linear`."""
    _check(packs(weight) and weight.dim() == 2, "weight", weight)
    num_outputs, num_inputs = weight.shape
    num_words = -(-num_inputs * weight.itemsize // (4 * _WORDS)) * _WORDS
    num_rows, length = -(-num_outputs // _BLOCK) * _BLOCK, num_words * 4 // weight.itemsize
    words = empty_in_huge_pages(weight, num_rows, length)
    dense = weight.detach().contiguous()
    _call("pack", weight.dtype, [dense, words], num_outputs, num_inputs, num_words)
    return PackedWeights(words, num_inputs, num_outputs, num_words)


def linear(
    hidden: torch.Tensor, weights: PackedWeights, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`hidden @ weight.T + bias`: `[…, inputs]` to `[…, outputs]`, contiguous."""
    num_inputs, num_outputs = weights.num_inputs, weights.num_outputs
    _check(hidden.dtype == weights.words.dtype and hidden.is_cpu, "hidden", hidden)
    _check(hidden.dim() > 0 and hidden.shape[-1] == num_inputs, "hidden", hidden)
    if bias is not None:
        _check_like("bias", bias, (num_outputs,), hidden.dtype)
        bias = bias.contiguous()
    hidden = hidden.contiguous()
    output = hidden.new_empty((*hidden.shape[:-1], num_outputs))
    sizes = hidden.numel() // num_inputs, num_inputs, num_outputs, weights.num_words
    _call("linear", hidden.dtype, [hidden, weights.words, bias, output], *sizes)
    return output


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    key_rows: torch.Tensor,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """`decoding.attention.attend` of a bool mask `[1, 1, tokens, extent]`, with an even dim.

    `key_rows`, `[tokens]` int64, are the cache rows of the tokens. One that sees no key gets zeros.
    """
    _check(query.dim() == 4 and attends(query, key, value, mask), "query", query)
    _, heads, tokens, dim = query.shape
    _check(len(query) == 1, "query", query)
    _check(key.dim() == 4 and key.shape[3] == dim and key.is_cpu, "key", key)
    _check_like("value", value, (*key.shape[:3], value.shape[-1]), query.dtype)
    num_rows, key_heads, extent, _ = key.shape
    _check(key_heads > 0 and heads % key_heads == 0, "key", key)
    _check_like("mask", mask, (1, 1, tokens, extent), torch.bool)
    _check_indices("key_rows", key_rows, tokens)
    if sinks is not None:
        _check_like("sinks", sinks, (heads,), sinks.dtype)
        sinks = sinks.detach().float().contiguous()
    query, key, value = map(_with_dense_heads, (query, key, value))
    mask = mask.contiguous()
    output = query.new_empty(1, tokens, heads, value.shape[3])
    tensors = [query, key, value, mask, sinks, key_rows, output]
    strides = [stride for each in (query, key, value) for stride in each.stride()[:3]]
    sizes = tokens, heads, num_rows, key_heads, dim, value.shape[3], extent
    if not _call("attend", query.dtype, tensors, *strides, *sizes, scale, softcap or 0.0):
        raise ValueError(f"key_rows must be from 0 to {num_rows - 1}")
    return output


def write_states(
    states: Sequence[torch.Tensor],
    caches: Sequence[torch.Tensor],
    rows: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    """Write a forward's keys and values, `[1, heads, tokens, dim]`, to a cache.

    The caches are `[rows, heads, capacity, dim]`, contiguous; rows and positions `[tokens]`, int64.
    """
    _, heads, num_tokens, _ = states[0].shape
    num_rows, _, capacity, _ = caches[0].shape
    _check_indices("rows", rows, num_tokens)
    _check_indices("positions", positions, num_tokens)
    states = [_with_dense_heads(new) for new in states]
    dtype = states[0].dtype
    _check(takes(states[0]), "states", states[0])
    layout = [num_tokens, heads, num_rows, capacity]
    for new, cache in zip(states, caches, strict=True):
        dim = new.shape[-1]
        _check_like("states", new, (1, heads, num_tokens, dim), dtype)
        _check_like("cache", cache, (num_rows, heads, capacity, dim), dtype)
        _check(cache.is_contiguous(), "cache", cache)
        layout += [dim, *new.stride()[1:3]]
    if not _call("write_states", dtype, [*states, *caches, rows, positions], *layout):
        raise ValueError(f"rows or positions lie outside a cache of {num_rows, capacity}")


def rms_norm(
    hidden: torch.Tensor, weight: torch.Tensor, epsilon: float, rounds_first: bool
) -> torch.Tensor:
    """`hidden / sqrt(mean(hidden²) + epsilon) * weight` over the last of `[…, size]`, contiguous.

    `weight` is float32 `[size]`; `rounds_first` rounds the quotient before the product.
    """
    size = hidden.shape[-1] if hidden.dim() else 0
    _check(takes(hidden) and size > 0, "hidden", hidden)
    _check_like("weight", weight, (size,), torch.float32)
    _check(weight.is_contiguous(), "weight", weight)
    hidden = hidden.contiguous()
    output = torch.empty_like(hidden)
    settings = hidden.numel() // size, size, epsilon, rounds_first
    _call("rms_norm", hidden.dtype, [hidden, weight, output], *settings)
    return output


def rotate(
    states: Sequence[torch.Tensor], cosines: torch.Tensor, sines: torch.Tensor
) -> list[torch.Tensor]:
    """Rotary embedding of the halves of heads, rounded as `x * cos + rotate_half(x) * sin` is.

    States are `[rows, heads, tokens, dim]` with an even dim, cosines and sines `[rows or 1, tokens,
    dim]`, all of one dtype.
    """
    _check(cosines.dim() == 3 and takes(cosines), "cosines", cosines)
    _check_like("sines", sines, cosines.shape, cosines.dtype)
    cosines, sines = cosines.contiguous(), sines.contiguous()
    num_angles, tokens, dim = cosines.shape
    outputs = []
    for each in states:
        _check_like("states", each, (*each.shape[:2], tokens, dim), cosines.dtype)
        _check(each.dim() == 4 and dim % 2 == 0, "states", each)
        _check(num_angles in (1, len(each)), "cosines", cosines)
        each = _with_dense_heads(each)
        output = each.new_empty(each.shape)
        layout = *each.shape, *each.stride()[:3], num_angles
        _call("rotate", cosines.dtype, [each, cosines, sines, output], *layout)
        outputs.append(output)
    return outputs


def gate(gates: torch.Tensor, activation: Activation) -> torch.Tensor:
    """`activation(gates) * up`, elementwise, of `[…, 2 * size]`, gates and up; `[…, size]`."""
    _check(takes(gates) and gates.dim() > 0 and gates.shape[-1] % 2 == 0, "gates", gates)
    *rows, width = gates.shape
    gates = gates.contiguous()
    output = gates.new_empty((*rows, width // 2))
    sizes = output.numel() // max(1, width // 2), width // 2
    _call("gate", gates.dtype, [gates, output], *sizes, activation == "silu")
    return output


def _with_dense_heads(states: torch.Tensor) -> torch.Tensor:
    return states if states.stride(-1) == 1 else states.contiguous()


def _check(holds: bool, name: str, tensor: torch.Tensor) -> None:
    if not holds:
        shape = tuple(tensor.shape)
        raise ValueError(f"{name} of shape {shape}, {tensor.dtype}, {tensor.device} is not served")


def _check_like(name: str, tensor: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
    if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_cpu:
        _check(False, name, tensor)


def _check_indices(name: str, indices: torch.Tensor, count: int) -> None:
    _check_like(name, indices, (count,), torch.int64)
    _check(indices.is_contiguous(), name, indices)


@contextmanager
def recorded_by(calls: list[Callable[[], Any]]) -> Iterator[None]:
    """Append to `calls` what calls each kernel again, with the same tensors."""
    token = _recorded.set(calls)
    try:
        yield
    finally:
        _recorded.reset(token)


def _call(
    name: str, dtype: torch.dtype, tensors: Sequence[torch.Tensor | None], *numbers: float
) -> bool:
    pointers = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
    function, arguments = _function(name, dtype), _STRUCTS[name].pack(*pointers, *numbers)
    if (calls := _recorded.get()) is not None:
        calls.append(partial(_again, tensors, function, arguments))
    return bool(function(arguments))


def _again(alive: Any, function: Callable[[bytes], Any], arguments: bytes) -> None:
    function(arguments)


@functools.cache
def _function(name: str, dtype: torch.dtype) -> Any:
    function = getattr(_library(dtype), name)
    function.argtypes, function.restype = [ctypes.c_char_p], ctypes.c_bool
    return function


@functools.cache
@announced("compiling the CPU kernels, once per machine")
def _library(dtype: torch.dtype) -> Any:
    return library.load(dtype)
