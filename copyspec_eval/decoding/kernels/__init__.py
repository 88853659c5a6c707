"""Our kernels for a CPU, in bfloat16 and float32: C++, compiled where it runs.

`torch.ops.copyspec.attend` and `torch.ops.copyspec.linear` have hardly any cost of their own per
call, and compute each token alone: its bits do not depend on what stands beside it. In a step of
few tokens they take a fourth and two thirds of the time of torch's. Where there is no C++ compiler,
torch's are taken.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
from array import array
from pathlib import Path
from shutil import which
from typing import Any

import torch

from copyspec_eval.decoding.announced import announced
from copyspec_eval.provenance import processor_features

logger = logging.getLogger(__name__)

_DTYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
_FILES = ("vectors.h", "attention.cpp", "linear.cpp")
_FLAGS = ("-ffp-contract=fast", "-Wno-psabi")
"""Products are added without a rounding between; and no warning that vectors may be wider than the
processor's."""
_BLOCK = 32
"""Outputs of a linear layer that lie together; `BLOCK` in vectors.h."""

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS: dict[str, list[Any]] = {
    "attend": [*[_POINTER] * 7, ctypes.c_float],
    "pack": [_POINTER, _POINTER, _SIZE, _SIZE],
    "linear": [*[_POINTER] * 4, _SIZE, _SIZE, _SIZE],
}

_library: Any = torch.library.Library("copyspec", "DEF")  # type: ignore[no-untyped-call]
_library.define(
    "attend(Tensor query, Tensor key, Tensor value, Tensor mask, Tensor? key_rows, float scale)"
    " -> Tensor"
)
_library.define("linear(Tensor hidden, Tensor packed, Tensor? bias, int num_outputs) -> Tensor")


def has_compiler() -> bool:
    """Whether there is the C++ compiler that torch calls."""
    usual = "clang++" if sys.platform == "darwin" else "g++"
    return which(os.environ.get("CXX", usual)) is not None


@functools.cache
def is_available() -> bool:
    """Whether the kernels compile here, which takes seconds once; torch's cache keeps them."""
    if not has_compiler():
        logger.warning("no C++ compiler, so torch's slower kernels are taken; install g++")
        return False
    try:
        _function("linear", torch.float32)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        logger.warning("torch's slower kernels are taken, for ours do not compile (%s)", reason)
        return False
    return True


def serve(model: torch.nn.Module) -> bool:
    """Whether they are taken for a model's weights, as far as its layers are of the usual kind."""
    return any(packs(weight) for weight in model.parameters())


def attends(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
) -> bool:
    """Whether `torch.ops.copyspec.attend` takes such tensors."""
    return (
        _takes(query)
        and query.dtype == key.dtype == value.dtype
        and mask.dtype == torch.bool
        and mask.shape[1] == 1
        and key.shape[-1] == value.shape[-1]
        and is_available()
    )


def packs(weight: torch.Tensor) -> bool:
    """Whether `pack` takes such weights, `[outputs, inputs]`."""
    return _takes(weight) and is_available()


def _takes(tensor: torch.Tensor) -> bool:
    # A word of 32 bits has two of bfloat16.
    return tensor.device.type == "cpu" and tensor.dtype in _DTYPES and tensor.shape[-1] % 2 == 0


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Weights `[outputs, inputs]` as `torch.ops.copyspec.linear` takes them."""
    weight = weight.contiguous()
    num_outputs, num_inputs = weight.shape
    packed = weight.new_empty(-(-num_outputs // _BLOCK) * _BLOCK, num_inputs)
    function = _function("pack", weight.dtype)
    function(weight.data_ptr(), packed.data_ptr(), num_outputs, num_inputs)
    return packed


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    key_rows: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """Attention of new tokens over cached keys.

    Args:
        query: `[rows, heads, tokens, dim]`.
        key, value: `[key rows, key heads, extent, dim]`.
        mask: bool `[rows, 1, tokens, extent]`, True for the keys that a token sees.
        key_rows: `[tokens]`, int64, of the tokens of a single row, whose keys they see; None if
            each row's keys have its number.
        scale: factor of the scores.

    Returns:
        `[rows, tokens, heads, dim]`.
    """
    rows, heads, tokens, dim = query.shape
    query, key, value = map(_with_dense_heads, (query, key, value))
    mask = mask.contiguous()
    output = query.new_empty(rows, tokens, heads, dim)
    strides = [*query.stride()[:3], *key.stride()[:3], *value.stride()[:3]]
    sizes = array("q", [*strides, rows, tokens, heads, key.shape[1], dim, key.shape[2]])
    _function("attend", query.dtype)(
        query.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        mask.data_ptr(),
        output.data_ptr(),
        None if key_rows is None else key_rows.data_ptr(),
        sizes.buffer_info()[0],
        scale,
    )
    return output


def _with_dense_heads(states: torch.Tensor) -> torch.Tensor:
    return states if states.stride(-1) == 1 else states.contiguous()


def _linear(
    hidden: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, num_outputs: int
) -> torch.Tensor:
    """`hidden @ weight.T + bias`, `[…, num_outputs]`.

    Args:
        hidden: `[…, inputs]`, in the dtype of the weights.
        packed: the weights, of `pack`.
        bias: `[num_outputs]`.
        num_outputs: see above.
    """
    if hidden.dtype != packed.dtype:
        raise RuntimeError(f"hidden states are {hidden.dtype}, the weights {packed.dtype}")
    hidden = hidden.contiguous()
    num_inputs = hidden.shape[-1]
    output = hidden.new_empty(*hidden.shape[:-1], num_outputs)
    _function("linear", hidden.dtype)(
        hidden.data_ptr(),
        packed.data_ptr(),
        None if bias is None else bias.data_ptr(),
        output.data_ptr(),
        hidden.numel() // num_inputs,
        num_outputs,
        num_inputs,
    )
    return output


@functools.cache
def _function(name: str, dtype: torch.dtype) -> Any:
    function = getattr(_compiled(), f"{name}_{_DTYPES[dtype]}")
    function.argtypes, function.restype = _ARGUMENTS[name], None
    return function


@functools.cache
@announced("preparing kernels for this processor")
def _compiled() -> Any:
    # Takes a second to import.
    from torch._inductor.codecache import CppCodeCache

    folder = Path(__file__).parent
    texts = [(folder / name).read_text(encoding="utf-8") for name in _FILES]
    # A cache may be shared with machines whose processor cannot run what is compiled for this one.
    source = "\n".join([f"// {processor_features()}", *texts])
    loader: Any = CppCodeCache
    return loader.load(source, device_type="cpu", extra_flags=_FLAGS)


_library.impl("attend", _attend, "CPU")
_library.impl(
    "attend",
    lambda query, *others: query.new_empty(
        (query.shape[0], query.shape[2], query.shape[1], query.shape[3])
    ),
    "Meta",
)
_library.impl("linear", _linear, "CPU")
_library.impl(
    "linear",
    lambda hidden, packed, bias, num_outputs: hidden.new_empty((*hidden.shape[:-1], num_outputs)),
    "Meta",
)
