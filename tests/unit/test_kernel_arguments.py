"""Kernels check every argument: a wrong one is an error of Python's, never a signal."""

import contextlib
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from copyspec_eval.decoding import kernels

pytestmark = pytest.mark.usefixtures("our_kernels")

Arguments = dict[str, Any]

_ERRORS = (ValueError, TypeError, AttributeError, RuntimeError, IndexError)
_DTYPES = (torch.bfloat16, torch.float32, torch.float16, torch.float64, torch.int64, torch.bool)


def normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def linear_arguments(dtype: torch.dtype) -> Arguments:
    weights = kernels.pack([normal(40, 64, dtype=dtype), normal(7, 64, dtype=dtype)])
    hidden, bias = normal(2, 3, 64, dtype=dtype), normal(47, dtype=dtype)
    return {"hidden": hidden, "weights": weights, "bias": bias}


def attend_arguments(dtype: torch.dtype) -> Arguments:
    query, key = normal(1, 4, 5, 16, dtype=dtype), normal(3, 2, 70, 16, dtype=dtype)
    value, rows = normal(3, 2, 70, 24, dtype=dtype), torch.tensor([0, 0, 2, 2, 1])
    chosen: Arguments = {"mask": torch.rand(1, 1, 5, 70) < 0.5, "scale": 0.3, "key_rows": rows}
    chosen |= {"softcap": 3.0, "sinks": normal(4, dtype=dtype)}
    return {"query": query, "key": key, "value": value, **chosen}


def write_arguments(dtype: torch.dtype) -> Arguments:
    return {
        "states": [normal(1, 3, 4, dim, dtype=dtype) for dim in (8, 6)],
        "caches": [normal(5, 3, 20, dim, dtype=dtype) for dim in (8, 6)],
        "rows": torch.tensor([1, 1, 4, 4]),
        "positions": torch.tensor([0, 1, 18, 19]),
    }


def rotate_arguments(dtype: torch.dtype) -> Arguments:
    angles = normal(2, 5, 16, dtype=dtype)
    states = [normal(2, heads, 5, 16, dtype=dtype) for heads in (3, 1)]
    return {"states": states, "cosines": angles, "sines": angles + 1}


OPERATORS: dict[Callable[..., Any], Callable[[torch.dtype], Arguments]] = {
    kernels.linear: linear_arguments,
    kernels.pack: lambda dtype: {"weights": [normal(n, 64, dtype=dtype) for n in (40, 7)]},
    kernels.attend: attend_arguments,
    kernels.write_states: write_arguments,
    kernels.rms_norm: lambda dtype: {
        "hidden": normal(4, 33, dtype=dtype),
        "weight": normal(33, dtype=torch.float32),
        "epsilon": 1e-6,
        "rounds_first": True,
    },
    kernels.rotate: rotate_arguments,
    kernels.gate: lambda dtype: {
        "gates": normal(3, 50, dtype=dtype),
        "up": normal(3, 50, dtype=dtype) + 1,
        "activation": "silu",
    },
}


def changed(source: random.Random, value: Any) -> Any:
    if isinstance(value, list) and value:
        index = source.randrange(len(value))
        return [*value[:index], changed(source, value[index]), *value[index + 1 :]]
    if not isinstance(value, torch.Tensor) or source.random() < 0.05:
        return source.choice([None, 1, -1, 0.0, "silu", "", [], torch.ones(2), float("nan")])
    dimension = source.randrange(value.dim()) if value.dim() else 0
    changes: list[Callable[[], torch.Tensor]] = [
        lambda: value.to(source.choice(_DTYPES)),
        lambda: value.to("meta"),
        lambda: value.unsqueeze(dimension),
        lambda: value.select(dimension, 0),
        lambda: value.narrow(dimension, 0, source.randrange(value.shape[dimension] + 1)),
        lambda: torch.cat([value, value], dimension),
        lambda: value.transpose(0, -1),
        lambda: value.repeat_interleave(2, dimension).unfold(dimension, value.shape[dimension], 2),
        lambda: torch.cat([value, value], -1)[..., ::2],
        lambda: value[:1].expand_as(value),
        lambda: torch.empty(0, dtype=value.dtype),
    ]
    if value.dtype == torch.int64 and value.numel():
        place = source.randrange(value.numel())
        wrong = source.choice([-1, 3, 5, 20, 2**40, -(2**62)])
        changes += 6 * [
            lambda: value.flatten().index_fill(0, torch.tensor(place), wrong).view_as(value)
        ]
    return source.choice(changes)()


def dense(value: Any) -> Any:
    if isinstance(value, list):
        return [dense(each) for each in value]
    if not isinstance(value, torch.Tensor):
        return value
    return value.clone(memory_format=torch.contiguous_format)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return torch.equal(one.nan_to_num(), other.nan_to_num())
    return isinstance(one, kernels.PackedWeights) or one is None


def try_out(seed: int) -> bool:
    """Call an operator with one or two changed arguments; gives whether it took them.

    What it takes must be right: the same as of dense copies.
    """
    source = random.Random(seed)
    operator, arguments_of = source.choice([*OPERATORS.items()])
    arguments = arguments_of(source.choice([torch.bfloat16, torch.float32]))
    for _ in range(source.choice([1, 1, 2])):
        name = source.choice([*arguments])
        # torch itself cannot change everything.
        with contextlib.suppress(RuntimeError, IndexError):
            arguments[name] = changed(source, arguments[name])
    copies = {name: dense(value) for name, value in arguments.items()}
    try:
        output = operator(**arguments)
    except (*_ERRORS, struct.error):
        return False
    assert same(output, operator(**copies)), (operator.__name__, seed)
    assert same(arguments.get("caches"), copies.get("caches")), seed
    return True


@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.slow)])
def test_wrong_arguments_end_in_an_error_of_python(count: int) -> None:
    """In a process of its own, which a signal would end."""
    command = [sys.executable, __file__, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    refused = int(done.stdout)
    assert count / 2 < refused < count, "some are right by chance, e.g. where only strides differ"


@pytest.mark.slow
def test_no_kernel_reads_or_writes_what_is_not_its_own() -> None:
    # With the C++ library beside it: the sanitiser has to see how torch throws.
    preloaded = [
        subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    sanitised = {
        "CXXFLAGS": "-g -fsanitize=address,undefined -fno-sanitize-recover=undefined",
        "LD_PRELOAD": " ".join(preloaded),
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    files = [__file__, str(Path(__file__).with_name("test_kernels.py"))]
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-k", "not no_kernel_reads", *files]
    environment = os.environ | sanitised
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


if __name__ == "__main__":
    print(sum(not try_out(seed) for seed in range(int(sys.argv[1]))))
