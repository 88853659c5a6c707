"""The pretended device refuses what a real one would; `test_devices` plants its defects."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pretended_device import DeviceError, PretendedDevice

from copyspec_eval.decoding.stopwatch import wait_for
from copyspec_eval.harness.backends.hf import HFBackend


def there(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device="cuda")


MIXED: dict[str, Callable[[], Any]] = {
    "a number of the host that is changed": lambda: torch.tensor(1.0).add_(there()),
    "an index of the device on the host": lambda: torch.ones(3)[there(1, dtype=torch.int64)],
    "a mask": lambda: there(2).masked_fill(torch.tensor([True, False]), 0.0),
    "a generator": lambda: torch.rand(2, device="cuda", generator=torch.Generator()),
    "two devices": lambda: there(2) + torch.ones(2, device="cuda:1"),
}

WAITS: dict[str, tuple[list[str], Callable[[], Any]]] = {
    "a copy into the host's": (["read"], lambda: torch.ones(2).copy_(there(2))),
    "data": (["upload"], lambda: there(2).new_tensor([1.0])),
    "a choice by mask": (["read"], lambda: there(2)[there(2) > 0]),
    "an index of the host": (["upload"], lambda: there(3)[torch.tensor([0])]),
    "nothing": ([], lambda: torch.where(there(2) > 0, there(2) * 2.0, 0.0)[None, :1]),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixes_are_refused(name: str) -> None:
    with PretendedDevice("cuda"), pytest.raises(DeviceError):
        MIXED[name]()


@pytest.mark.parametrize("name", WAITS)
def test_what_makes_the_host_wait_is_recorded(name: str) -> None:
    kinds, act = WAITS[name]
    with PretendedDevice("cuda") as pretended:
        act()
    assert [event.kind for event in pretended.events] == kinds


@pytest.mark.parametrize("device", ["cuda", "mps", "xpu"])
def test_the_clock_of_hf_waits_for_any_accelerator(device: str) -> None:
    with PretendedDevice(device) as pretended:
        wait_for(torch.device("cpu"))
        assert not pretended.events
        wait_for(torch.device(device))
        backend: Any = SimpleNamespace(device=torch.device(device))
        assert HFBackend._now(backend) > 0
    assert [event.kind for event in pretended.events] == ["wait", "wait"]
