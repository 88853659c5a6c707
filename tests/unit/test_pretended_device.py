"""The pretended device refuses what a real one would, and records what makes the host wait."""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pretended_device import DeviceError, PretendedDevice

from copyspec_eval.decoding.stopwatch import wait_for
from copyspec_eval.harness.backends.hf import HFBackend

CUDA = torch.device("cuda", 0)


def there(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device="cuda")


MADE: dict[str, Callable[[], Any]] = {
    "a factory": lambda: torch.arange(3, device="cuda"),
    "a factory within a device": lambda: made_within(lambda: torch.zeros(2)),
    "a factory like": lambda: torch.zeros_like(there(2)),
    "data for a tensor's device": lambda: there(2).new_tensor([1.0]),
    "data": lambda: torch.tensor([1, 2], device=0),
    "a copy": lambda: torch.ones(2).to("cuda"),
    "a copy to that of another": lambda: torch.ones(2).to(there(1)),
    "a view": lambda: there(2, 3).t()[1:].flatten(),
    "a sum with a number of the host": lambda: there(2) + torch.tensor(1.0),
    "a slice that was set": lambda: set_at(there(3), slice(1), torch.ones(1)),
    "what an index of the host finds": lambda: there(3)[torch.tensor([0, 2])],
    "a copy in depth": lambda: copy.deepcopy({"a": there(2)})["a"],
    "what a module gives": lambda: torch.nn.Linear(2, 2).to("cuda")(there(1, 2)),
    "what inference mode gives": lambda: torch.inference_mode()(lambda: there(2) @ there(2))(),
    "random numbers": lambda: torch.rand(
        2, device="cuda", generator=torch.Generator("cuda").manual_seed(1)
    ),
}

MIXED: dict[str, Callable[[], Any]] = {
    "a sum": lambda: there(2) + torch.ones(2),
    "a sum on the host with a number of the device": lambda: torch.ones(2) + there(),
    "a number of the host that is changed": lambda: torch.tensor(1.0).add_(there()),
    "a look-up": lambda: torch.nn.functional.embedding(torch.tensor([0]), there(2, 2)),
    "an index of the device on the host": lambda: torch.ones(3)[there(1, dtype=torch.int64)],
    "values that are set by index": lambda: set_at(
        there(3), there(2, dtype=torch.int64), torch.ones(2)
    ),
    "a mask": lambda: there(2).masked_fill(torch.tensor([True, False]), 0.0),
    "NumPy": lambda: there(2).numpy(),
    "a generator": lambda: torch.rand(2, device="cuda", generator=torch.Generator()),
    "two devices": lambda: there(2) + torch.ones(2, device="cuda:1"),
}

WAITS: dict[str, tuple[list[str], Callable[[], Any]]] = {
    "a number": (["read"], lambda: int(there())),
    "a truth": (["read"], lambda: bool(there(2).all())),
    "a list": (["read"], lambda: there(2).tolist()),
    "a copy to the host": (["read"], lambda: there(2).cpu()),
    "a copy into the host's": (["read"], lambda: torch.ones(2).copy_(there(2))),
    "a copy": (["upload"], lambda: torch.ones(2).to("cuda")),
    "data": (["upload"], lambda: torch.tensor([1], device="cuda")),
    "places that are not zero": (["read"], lambda: there(2).nonzero()),
    "a choice by mask": (["read"], lambda: there(2)[there(2) > 0]),
    "a comparison": (["read"], lambda: torch.equal(there(2), there(2))),
    "an index of the host": (["upload"], lambda: there(3)[torch.tensor([0])]),
    "a synchronisation": (["wait"], lambda: torch.cuda.synchronize()),
    "nothing": ([], lambda: torch.where(there(2) > 0, there(2) * 2.0, 0.0)[None, :1]),
    "nothing by a mask": ([], lambda: set_at(there(2), there(2) > 0, 0.0)),
    "nothing on the host": ([], lambda: torch.ones(2).to("cpu").tolist()),
    "nothing of no size": ([], lambda: torch.ones(0).to("cuda")),
}


def made_within(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    with torch.device("cuda"):
        return make()


def set_at(tensor: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    tensor[index] = value
    return tensor


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_there_is_there(name: str) -> None:
    with PretendedDevice("cuda"):
        made = MADE[name]()
        assert made.device == CUDA
        assert made.is_cuda
        assert not made.is_cpu
        assert made.cpu().device == torch.device("cpu")
    assert made.device == torch.device("cpu")


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
    assert all(event.place.startswith("test_pretended_device.py:") for event in pretended.events)


def test_a_copy_shares_no_memory() -> None:
    with PretendedDevice("cuda"):
        here = torch.zeros(2)
        copied = here.to("cuda")
        copied += 1
        back = copied.cpu()
        back += 1
        assert (here.tolist(), copied.tolist(), back.tolist()) == ([0, 0], [1, 1], [2, 2])


@pytest.mark.parametrize(("device", "has"), [("cuda", True), ("mps", False), ("xpu", False)])
def test_float64_is_refused_where_there_is_none(device: str, has: bool) -> None:
    acts: list[Callable[[], torch.Tensor]] = [
        lambda: torch.ones(2, device=device, dtype=torch.float64),
        lambda: torch.ones(2, dtype=torch.float64).to(device),
        lambda: torch.ones(2, device=device).double(),
        lambda: torch.ones(2, device=device).softmax(0, dtype=torch.float64),
    ]
    with PretendedDevice(device):
        for act in acts:
            if has:
                assert act().device.type == device
            else:
                with pytest.raises(DeviceError, match=r"has no torch\.float64"):
                    act()
        # What the host computes with does not matter.
        assert torch.ones(2, device=device).to("cpu", torch.float64).dtype == torch.float64
        cast = torch.ones(2, dtype=torch.float64).to(device, torch.float32)
        assert cast.device.type == device


def test_layers_are_named_in_what_they_wait_for() -> None:
    class Reading(torch.nn.Module):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden * float(hidden.max())

    with PretendedDevice("cuda") as pretended, torch.no_grad():
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), Reading()).to("cuda")
        pretended.events.clear()
        model(there(1, 2)).tolist()
    assert [event.layer for event in pretended.events] == ["Reading", ""]
    assert pretended.num_forwards == 1


@pytest.mark.parametrize("device", ["cuda", "mps", "xpu"])
def test_the_clock_of_hf_waits_for_any_accelerator(device: str) -> None:
    with PretendedDevice(device) as pretended:
        wait_for(torch.device("cpu"))
        assert not pretended.events
        wait_for(torch.device(device))
        backend: Any = SimpleNamespace(device=torch.device(device))
        assert HFBackend._now(backend) > 0
    assert [event.kind for event in pretended.events] == ["wait", "wait"]
