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

_ERRORS = (ValueError, TypeError, AttributeError, RuntimeError, IndexError, struct.error)
_KINDS: list[Any] = [torch.bfloat16, torch.float32, torch.float16, torch.float64, torch.int64]
_KINDS += [torch.bool, "meta"]


def right_arguments(dtype: torch.dtype) -> dict[Callable[..., Any], Arguments]:
    """Of each operator."""

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)

    weight, angles = make(47, 64), make(2, 5, 16)
    attended: Arguments = {"query": make(1, 4, 5, 16), "key": make(3, 2, 70, 16)}
    attended |= {"value": make(3, 2, 70, 24), "mask": torch.rand(1, 1, 5, 70) < 0.5, "scale": 0.3}
    attended |= {"key_rows": torch.tensor([0, 0, 2, 2, 1]), "softcap": 3.0, "sinks": make(4)}
    written: Arguments = {"rows": torch.tensor([1, 1, 4, 4])}
    written |= {"positions": torch.tensor([0, 1, 18, 19])}
    written["states"] = [make(1, 3, 4, 8), make(1, 3, 4, 6)]
    written["caches"] = [make(5, 3, 20, 8), make(5, 3, 20, 6)]
    normed: Arguments = {"hidden": make(4, 33), "weight": make(33).float()}
    linear = {"hidden": make(2, 3, 64), "weights": kernels.pack(weight), "bias": make(47)}
    rotated = [make(2, 3, 5, 16), make(2, 1, 5, 16)]
    return {
        kernels.linear: linear,
        kernels.pack: {"weight": weight},
        kernels.attend: attended,
        kernels.write_states: written,
        kernels.rms_norm: normed | {"epsilon": 1e-6, "rounds_first": True},
        kernels.rotate: {"states": rotated, "cosines": angles, "sines": angles + 1},
        kernels.gate: {"gates": make(3, 100), "activation": "silu"},
    }


def changed(source: random.Random, value: Any) -> Any:
    if isinstance(value, list) and value:
        index = source.randrange(len(value))
        return [*value[:index], changed(source, value[index]), *value[index + 1 :]]
    if not isinstance(value, torch.Tensor) or source.random() < 0.05:
        return source.choice([None, 1, -1, 0.0, "silu", "", [], torch.ones(2), float("nan")])
    dimension = source.randrange(value.dim()) if value.dim() else 0
    changes: list[Callable[[], torch.Tensor]] = [
        lambda: value.to(source.choice(_KINDS)),
        lambda: value.unsqueeze(dimension),
        lambda: value.select(dimension, 0),
        lambda: value.narrow(dimension, 0, source.randrange(value.shape[dimension] + 1)),
        lambda: torch.cat([value, value], dimension),
        lambda: value.transpose(0, -1),
        lambda: torch.cat([value, value], -1)[..., ::2],
        lambda: value[:1].expand_as(value),
    ]
    if value.dtype == torch.int64 and value.numel():
        wrong = source.choice([-1, 3, 5, 20, 2**40, -(2**62)])
        place = torch.tensor(source.randrange(value.numel()))
        changes += 6 * [lambda: value.flatten().index_fill(0, place, wrong).view_as(value)]
    return source.choice(changes)()


def dense(value: Any) -> Any:
    if isinstance(value, list):
        return [dense(each) for each in value]
    is_tensor = isinstance(value, torch.Tensor)
    return value.clone(memory_format=torch.contiguous_format) if is_tensor else value


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
    given = right_arguments(source.choice([torch.bfloat16, torch.float32]))
    operator, arguments = source.choice([*given.items()])
    for _ in range(source.choice([1, 1, 2])):
        name = source.choice([*arguments])
        # torch itself cannot change everything.
        with contextlib.suppress(RuntimeError, IndexError):
            arguments[name] = changed(source, arguments[name])
    copies = {name: dense(value) for name, value in arguments.items()}
    try:
        output = operator(**arguments)
    except _ERRORS:
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
    sanitised = {"LD_PRELOAD": " ".join(preloaded), "ASAN_OPTIONS": "detect_leaks=0"}
    flags = "-g -fsanitize=address,undefined -fno-sanitize-recover=undefined"
    files = [__file__, str(Path(__file__).with_name("test_kernels.py"))]
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-k", "not no_kernel_reads", *files]
    environment = os.environ | sanitised | {"CXXFLAGS": flags}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


if __name__ == "__main__":
    print(sum(not try_out(seed) for seed in range(int(sys.argv[1]))))
