"""Our kernels for a CPU, in bfloat16 and float32: C++, compiled where it runs.

Each computes every token alone: its bits do not depend on what stands beside it. Where there is no
C++ compiler, torch's kernels are used. Every argument is checked before its address is passed on.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from copyspec_eval.decoding.announced import announced
from copyspec_eval.decoding.kernels import library
from copyspec_eval.decoding.kernels.library import logger

_DTYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
_BLOCK, _WORDS = 32, 16
"""Outputs of a linear layer that lie together, and words of inputs to whose multiple they are
filled up; see linear.cpp."""

_POINTER, _SIZE, _FLOAT, _BOOL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_bool
_ARGUMENTS: dict[str, list[Any]] = {
    "attend": [*[_POINTER] * 8, _FLOAT, _FLOAT],
    "pack": [_POINTER, _POINTER, _SIZE, _SIZE],
    "linear": [*[_POINTER] * 4, _SIZE, _SIZE, _SIZE, _POINTER],
    "rms_norm": [*[_POINTER] * 3, _SIZE, _SIZE, _FLOAT, _BOOL],
    "rotate": [_POINTER] * 5,
    "gate": [*[_POINTER] * 3, _SIZE, _BOOL],
    "write_states": [_POINTER] * 7,
}
_CHECKING = ("attend", "write_states")
"""They give whether indices are in range."""


def has_compiler() -> bool:
    return library.compiler() is not None


@functools.cache
def is_available() -> bool:
    """Whether the kernels compile here, which takes seconds once; the user's cache keeps them."""
    if not has_compiler():
        logger.warning("no C++ compiler, so torch's slower kernels are used; install g++")
        return False
    try:
        tiles = _library().uses_tiles()
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", None) or str(error).encode()
        reason = output.decode(errors="replace").strip().partition("\n")[0]
        logger.warning("torch's slower kernels are used: ours do not compile (%s)", reason)
        return False
    logger.info("kernels: copyspec's, %s", "with AMX in bfloat16" if tiles else "without AMX")
    return True


def serve(model: torch.nn.Module) -> bool:
    """Whether they are used for some of a model's weights."""
    return any(packs(weight) for weight in model.parameters())


def takes(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu and tensor.dtype in _DTYPES and is_available()


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
    """Weights of linear layers that read the same inputs, laid out as in linear.cpp."""

    words: torch.Tensor
    num_inputs: int
    num_outputs: tuple[int, ...]
    _sizes: Any

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.words.dtype


def pack(weights: Sequence[torch.Tensor]) -> PackedWeights:
    """Weights, each `[outputs, inputs]` with the same inputs and dtype, for `linear`."""
    first = weights[0]
    for weight in weights:
        _check(packs(weight) and weight.dim() == 2, "weights", weight)
        _check(weight.shape[1] == first.shape[1] and weight.dtype == first.dtype, "weights", weight)
    num_inputs = first.shape[1]
    per_word = 4 // first.itemsize
    padded = -(-num_inputs // (_WORDS * per_word)) * _WORDS * per_word
    rows = [-(-len(weight) // _BLOCK) * _BLOCK for weight in weights]
    words = first.new_empty(sum(rows), padded)
    function = _function("pack", first.dtype)
    for weight, part in zip(weights, torch.split(words, rows), strict=True):
        dense = weight.detach().contiguous()
        function(dense.data_ptr(), part.data_ptr(), len(dense), num_inputs)
    num_outputs = tuple(len(weight) for weight in weights)
    return PackedWeights(
        words, num_inputs, num_outputs, (ctypes.c_int64 * len(weights))(*num_outputs)
    )


def linear(
    hidden: torch.Tensor, weights: PackedWeights, bias: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """`hidden @ weight.T + bias` of each layer: `[…, inputs]` to `[…, outputs]` each, contiguous.

    `bias` is of all layers, one after the other, `[sum of outputs]`.
    """
    _check(hidden.dtype == weights.dtype and hidden.is_cpu, "hidden", hidden)
    _check(hidden.dim() > 0 and hidden.shape[-1] == weights.num_inputs, "hidden", hidden)
    if bias is not None:
        _check(bias.dtype == weights.dtype and bias.is_cpu, "bias", bias)
        _check(bias.shape == (sum(weights.num_outputs),), "bias", bias)
        bias = bias.contiguous()
    hidden = hidden.contiguous()
    shape = hidden.shape[:-1]
    outputs = [hidden.new_empty((*shape, size)) for size in weights.num_outputs]
    addresses = array("Q", [output.data_ptr() for output in outputs])
    _function("linear", weights.dtype)(
        hidden.data_ptr(),
        weights.words.data_ptr(),
        None if bias is None else bias.data_ptr(),
        addresses.buffer_info()[0],
        hidden.numel() // weights.num_inputs,
        weights.num_inputs,
        len(outputs),
        weights._sizes,
    )
    return outputs


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
    """Attention of new tokens over cached keys.

    Args:
        query: `[1, heads, tokens, dim]`, with an even dim.
        key: `[rows, key heads, extent, dim]`; value: `[rows, key heads, extent, value dim]`.
        mask: bool `[1, 1, tokens, extent]`, True for the keys that a token sees.
        scale: factor of the scores.
        key_rows: `[tokens]`, int64, the row of each token's keys.
        softcap, sinks: as in `decoding.attention.attend`.

    Returns:
        `[1, tokens, heads, value dim]`, contiguous. A token that sees no key gets zeros.
    """
    _check(query.dim() == 4 and attends(query, key, value, mask), "query", query)
    _, heads, tokens, dim = query.shape
    _check(len(query) == 1, "query", query)
    _check(key.dim() == 4 and key.shape[3] == dim and key.is_cpu, "key", key)
    _check(value.dim() == 4 and value.is_cpu, "value", value)
    _check(value.shape[:3] == key.shape[:3], "value", value)
    num_rows, key_heads, extent, _ = key.shape
    _check(key_heads > 0 and heads % key_heads == 0, "key", key)
    _check(mask.shape == (1, 1, tokens, extent) and mask.is_cpu, "mask", mask)
    _check_indices("key_rows", key_rows, tokens)
    if sinks is not None:
        _check(sinks.shape == (heads,) and sinks.is_cpu, "sinks", sinks)
        sinks = sinks.detach().float().contiguous()
    query, key, value = map(_with_dense_heads, (query, key, value))
    mask = mask.contiguous()
    output = query.new_empty(1, tokens, heads, value.shape[3])
    layout = *query.stride(), *key.stride(), *value.stride(), *query.shape, *key.shape
    sizes = array("q", (*layout, value.shape[3]))
    is_done = _function("attend", query.dtype)(
        query.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        mask.data_ptr(),
        None if sinks is None else sinks.data_ptr(),
        key_rows.data_ptr(),
        output.data_ptr(),
        sizes.buffer_info()[0],
        scale,
        softcap or 0.0,
    )
    if not is_done:
        raise ValueError(f"key_rows is not under {num_rows} throughout")
    return output


def write_states(
    states: Sequence[torch.Tensor],
    caches: Sequence[torch.Tensor],
    rows: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    """Write a forward's keys and values, `[1, heads, tokens, dim]`, of any dtype, to a cache.

    The caches are `[rows, heads, capacity, dim]`, contiguous; rows and positions `[tokens]`, int64.
    """
    _, heads, num_tokens, _ = states[0].shape
    num_rows, _, capacity, _ = caches[0].shape
    _check_indices("rows", rows, num_tokens)
    _check_indices("positions", positions, num_tokens)
    states = [_with_dense_heads(new) for new in states]
    sizes = array("q", (num_tokens, heads, num_rows, capacity))
    for new, cache in zip(states, caches, strict=True):
        dim = new.shape[-1]
        _check(new.shape == (1, heads, num_tokens, dim) and new.is_cpu, "states", new)
        _check(cache.shape == (num_rows, heads, capacity, dim), "cache", cache)
        _check(cache.dtype == new.dtype and cache.is_cpu, "cache", cache)
        _check(cache.is_contiguous(), "cache", cache)
        _, of_heads, of_tokens, _ = new.stride()
        sizes.extend(new.itemsize * number for number in (dim, of_heads, of_tokens))
    is_done = _function("write_states", None)(
        *(tensor.data_ptr() for tensor in (*states, *caches, rows, positions)),
        sizes.buffer_info()[0],
    )
    if not is_done:
        raise ValueError(f"rows or positions are not in a cache of {num_rows, capacity}")


def rms_norm(
    hidden: torch.Tensor, weight: torch.Tensor, epsilon: float, rounds_first: bool
) -> torch.Tensor:
    """`hidden / sqrt(mean(hidden²) + epsilon) * weight` over the last of `[…, size]`, contiguous.

    `weight` is float32 `[size]`; `rounds_first` rounds the quotient before the product.
    """
    size = hidden.shape[-1] if hidden.dim() else 0
    _check(takes(hidden) and size > 0, "hidden", hidden)
    _check(weight.dtype == torch.float32 and weight.is_cpu, "weight", weight)
    _check(weight.shape == (size,) and weight.is_contiguous(), "weight", weight)
    hidden = hidden.contiguous()
    output = torch.empty_like(hidden)
    _function("rms_norm", hidden.dtype)(
        hidden.data_ptr(),
        weight.data_ptr(),
        output.data_ptr(),
        hidden.numel() // size,
        size,
        epsilon,
        rounds_first,
    )
    return output


def rotate(
    states: Sequence[torch.Tensor], cosines: torch.Tensor, sines: torch.Tensor
) -> list[torch.Tensor]:
    """Rotary embedding of the halves of heads, rounded as `x * cos + rotate_half(x) * sin` is.

    States are `[rows, heads, tokens, dim]` with an even dim, cosines and sines `[rows or 1, tokens,
    dim]`, all of one dtype.
    """
    _check(cosines.dim() == 3 and takes(cosines), "cosines", cosines)
    _check(sines.shape == cosines.shape and sines.is_cpu, "sines", sines)
    _check(sines.dtype == cosines.dtype, "sines", sines)
    cosines, sines = cosines.contiguous(), sines.contiguous()
    num_angles, tokens, dim = cosines.shape
    function = _function("rotate", cosines.dtype)
    outputs = []
    for each in states:
        _check(each.dim() == 4 and each.is_cpu and each.dtype == cosines.dtype, "states", each)
        rows, heads, *_ = each.shape
        _check(each.shape == (rows, heads, tokens, dim) and dim % 2 == 0, "states", each)
        _check(num_angles in (1, rows), "cosines", cosines)
        each = _with_dense_heads(each)
        output = each.new_empty(each.shape)
        sizes = array("q", (*each.shape, *each.stride(), num_angles))
        function(
            *(tensor.data_ptr() for tensor in (each, cosines, sines, output)),
            sizes.buffer_info()[0],
        )
        outputs.append(output)
    return outputs


def gate(
    gates: torch.Tensor, up: torch.Tensor, activation: Literal["silu", "gelu_tanh"]
) -> torch.Tensor:
    """`activation(gates) * up`, elementwise."""
    _check(takes(gates), "gates", gates)
    _check(up.dtype == gates.dtype and up.is_cpu, "up", up)
    _check(up.shape == gates.shape, "up", up)
    gates, up = gates.contiguous(), up.contiguous()
    output = torch.empty_like(gates)
    _function("gate", gates.dtype)(
        gates.data_ptr(), up.data_ptr(), output.data_ptr(), gates.numel(), activation == "silu"
    )
    return output


def _with_dense_heads(states: torch.Tensor) -> torch.Tensor:
    return states if states.stride(-1) == 1 else states.contiguous()


def _check(holds: bool, name: str, tensor: torch.Tensor) -> None:
    if not holds:
        shape = tuple(tensor.shape)
        raise ValueError(f"{name} of shape {shape}, {tensor.dtype}, {tensor.device} is not taken")


def _check_indices(name: str, indices: torch.Tensor, count: int) -> None:
    _check(indices.dtype == torch.int64 and indices.is_cpu, name, indices)
    _check(indices.numel() == count and indices.is_contiguous(), name, indices)


@functools.cache
def _function(name: str, dtype: torch.dtype | None) -> Any:
    full_name = f"{name}_{_DTYPES[dtype]}" if dtype else name
    function = getattr(_library(), full_name)
    function.argtypes = _ARGUMENTS[name]
    function.restype = _BOOL if name in _CHECKING else None
    return function


@functools.cache
@announced("compiling the CPU kernels, once per machine")
def _library() -> Any:
    loaded = library.load()
    loaded.uses_tiles.restype = ctypes.c_bool
    return loaded
