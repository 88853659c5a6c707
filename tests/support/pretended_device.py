"""An accelerator that is not there: which tensors would be on it, and what would wait for it.

Numbers are computed on the CPU as ever. Storages are labelled as of the host or of the device, and
what torch refuses on such a device is refused here: operations on tensors of both (but for scalars
of the host, indices of the host, and copies), reading a device's memory from NumPy, a dtype that
the device lacks. Copies between the two, and whatever makes the host wait, are recorded.

Python sees the device everywhere: `tensor.device` is `cuda:0`, and so the code under test takes the
accelerator's path.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules import module as modules
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

HOST = torch.device("cpu")

LACKING = {torch.float64, torch.complex128}
"""In MPS, and in the XPUs that people have at home."""

_aten: Any = torch.ops.aten
_weak_reference: Any = StorageWeakRef
_READING = {_aten.item, _aten._local_scalar_dense, _aten.is_nonzero, _aten.equal, _aten.allclose}
_READING |= {_aten.nonzero, _aten.nonzero_numpy, _aten.masked_select, _aten.bincount}
_READING |= {_aten._unique2, _aten.unique_consecutive, _aten.unique_dim}
"""The host waits for a number, be it only the size of the result."""
_INDEXING = {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_}
_TAKING_SCALARS = {_aten.masked_fill, _aten.masked_fill_, _aten.fill, _aten.fill_, _aten.where}
"""As all that is elementwise."""
_WITH_DATA = {torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor}
"""These copy what they are given to their device."""


class DeviceError(RuntimeError):
    """What the device would refuse."""


class Event(NamedTuple):
    """A copy between host and device, or a wait for the device.

    An "upload" waits as well, unless its memory is pinned. `layer` is the class of the innermost
    module that was running, `place` the innermost file and line of our code or a model's.
    """

    kind: Literal["read", "upload", "wait"]
    operation: str
    layer: str
    place: str


class PretendedDevice(ExitStack):
    """See the module; a context manager, within which the device is there."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.device = named(name)
        self.events: list[Event] = []
        self.num_forwards = 0
        self._labels: dict[int, tuple[Any, torch.device]] = {}
        self._running: list[str] = []

    def __enter__(self) -> "PretendedDevice":
        self.callback(modules.register_module_forward_pre_hook(self._begin).remove)
        self.callback(modules.register_module_forward_hook(self._end, always_call=True).remove)
        of_type: Any = torch.get_device_module(self.device.type)
        patch = mock.patch.object

        def wait(*devices: object) -> None:
            self.record("wait", "synchronize")

        for module in (of_type, torch.accelerator):
            # With the signature that it has there: of MPS it takes no number.
            self.enter_context(patch(module, "synchronize", autospec=True, side_effect=wait))
        for name, value in (("device_count", 1), ("get_device_name", "pretended")):
            self.enter_context(patch(of_type, name, return_value=value, create=True))
        self.enter_context(_DispatchMode(self))
        self.enter_context(_FunctionMode(self))
        return self

    def owner_of(self, tensor: torch.Tensor) -> torch.device:
        storage = _storage(tensor)
        known = None if storage is None else self._labels.get(storage._cdata)
        return known[1] if known else tensor.device if storage is None else HOST

    def label(self, tensor: torch.Tensor, device: torch.device) -> None:
        if device.type in ("mps", "xpu") and tensor.dtype in LACKING:
            raise DeviceError(f"{device.type} has no {tensor.dtype}")
        storage = _storage(tensor)
        assert storage is not None
        self._labels.pop(storage._cdata, None)
        if device != HOST:
            if len(self._labels) % 10_000 == 9_999:
                alive = [item for item in self._labels.items() if not item[1][0].expired()]
                self._labels = dict(alive)
            # While there is a weak reference, no other storage is given the address.
            self._labels[storage._cdata] = _weak_reference(storage), device

    def move(self, tensor: torch.Tensor, target: torch.device, operation: str) -> torch.Tensor:
        self.copied(tensor, self.owner_of(tensor), target, operation)
        moved = tensor.clone()
        self.label(moved, target)
        return moved

    def copied(
        self, tensor: torch.Tensor, source: torch.device, target: torch.device, operation: str
    ) -> None:
        """Record a copy of a tensor; from one device to another it is none of the host's."""
        if tensor.numel() and HOST in (source, target):
            self.record("read" if target == HOST else "upload", operation)

    def record(self, kind: Literal["read", "upload", "wait"], operation: str) -> None:
        layer = self._running[-1] if self._running else ""
        self.events.append(Event(kind, operation, layer, _place()))

    def _begin(self, layer: torch.nn.Module, given: object) -> None:
        self.num_forwards += not self._running
        self._running.append(type(layer).__name__)

    def _end(self, layer: torch.nn.Module, given: object, output: object) -> None:
        self._running.pop()


def named(device: Any) -> torch.device:
    """A device as tensors name it: with its number, but for the host."""
    actual = torch.device(device)
    if actual.type in ("cpu", "meta"):
        return torch.device(actual.type)
    return torch.device(actual.type, actual.index or 0)


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """None where there is nothing on any device."""
    return None if tensor.is_meta or tensor.is_mkldnn else tensor.untyped_storage()


def _place() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None:
        path = Path(frame.f_code.co_filename)
        if {"copyspec_eval", "transformers", "benchmarks", "unit"} & {*path.parts}:
            return f"{path.name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


class _DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Labels what operations give, and refuses those on tensors of several devices."""

    def __init__(self, pretended: PretendedDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._of = pretended

    def __torch_dispatch__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        with torch._C.DisableTorchFunction():
            given = _tensors((args, kwargs))
            device = self._device(func, args, given)
            output = func(*args, **(kwargs or {}))
            known = {storage._cdata for storage in map(_storage, given) if storage is not None}
            for tensor in _tensors(output):
                storage = _storage(tensor)
                # What it shares its storage with has its label already.
                if storage is not None and storage._cdata not in known:
                    self._of.label(tensor, device)
        return output

    def _device(self, func: Any, args: Any, given: Sequence[torch.Tensor]) -> torch.device:
        owner, packet = self._of.owner_of, func.overloadpacket
        devices = [owner(tensor) for tensor in given]
        if packet is _aten.copy_:
            self._of.copied(given[1], devices[1], devices[0], "copy_")
            return devices[0]
        if packet in _INDEXING:
            return self._device_of_indexing(func, args)
        if packet in _READING and any(device != HOST for device in devices):
            self._of.record("read", packet.__name__)
        if len({*devices}) <= 1:
            return devices[0] if devices else HOST
        takes_scalars = torch.Tag.pointwise in func.tags or packet in _TAKING_SCALARS
        counting = {
            device
            for tensor, device in zip(given, devices, strict=True)
            if not takes_scalars or device != HOST or tensor.dim()
        }
        is_written = func._schema.is_mutable and devices[0] not in counting
        if len(counting) != 1 or is_written:
            raise _mixed(func, devices)
        return counting.pop()

    def _device_of_indexing(self, func: Any, args: Any) -> torch.device:
        """Indices may be on the host; then they are copied."""
        whole, indices, *others = args
        device = self._of.owner_of(whole)
        values = [value for value in others if isinstance(value, torch.Tensor)]
        owned = [(value, self._of.owner_of(value)) for value in values]
        places = [owner for value, owner in owned if value.dim() or owner != HOST]
        for index in (index for index in indices if index is not None):
            of_index = self._of.owner_of(index)
            if of_index != HOST:
                places.append(of_index)
            if of_index != HOST and index.dtype == torch.bool and all(v.dim() for v in values):
                self._of.record("read", "nonzero")
            if of_index != device:
                self._of.copied(index, of_index, device, "index")
        if {*places} - {device}:
            raise _mixed(func, [device, *places])
        return device


class _FunctionMode(TorchFunctionMode):
    """Turns what names a device into labels."""

    def __init__(self, pretended: PretendedDevice) -> None:
        super().__init__()
        self._of = pretended
        tensor: Any = torch.Tensor
        self._instead: dict[Any, Callable[..., Any]] = {
            tensor.device.__get__: pretended.owner_of,
            tensor.is_cpu.__get__: lambda it: pretended.owner_of(it) == HOST,
            tensor.to: self._to,
            tensor.cpu: lambda it, *_, **__: self._to(it, HOST),
            tensor.tolist: self._tolist,
            tensor.numpy: self._numpy,
            tensor.__array__: self._numpy,
        }
        for kind in ("cuda", "mps", "xpu"):
            if hasattr(tensor, f"is_{kind}"):
                getter = getattr(tensor, f"is_{kind}").__get__
                self._instead[getter] = lambda it, kind=kind: pretended.owner_of(it).type == kind
            if hasattr(tensor, kind):
                move = lambda it, device=kind, *_, **__: self._to(it, device)  # noqa: E731
                self._instead[getattr(tensor, kind)] = move

    def __torch_function__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in self._instead:
            return self._instead[func](*args, **kwargs)
        device = kwargs.pop("device", None)
        if device is None and func is torch.Tensor.new_tensor:
            device = self._of.owner_of(args[0])
        if device is None:
            return func(*args, **kwargs)
        target = self._named(device)
        if target.type == "meta":
            return func(*args, device=target, **kwargs)
        output = func(*args, **kwargs)
        for tensor in _tensors(output):
            if func in _WITH_DATA:
                self._of.copied(tensor, self._of.owner_of(tensor), target, func.__name__)
            self._of.label(tensor, target)
        return output

    def _named(self, device: Any) -> torch.device:
        if isinstance(device, int):
            return torch.device(self._of.device.type, device)
        return named(device)

    def _to(self, tensor: torch.Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Any:
        other = args[0] if args else kwargs.get("other")
        if isinstance(other, torch.Tensor):
            device, dtype, layout = self._of.owner_of(other), other.dtype, None
        else:
            if args and isinstance(args[0], int):
                args = self._named(args[0]), *args[1:]
            device, dtype, _, layout = torch._C._nn._parse_to(*args, **kwargs)
        source = self._of.owner_of(tensor)
        target = source if device is None else named(device)
        if target.type == "meta":
            return tensor.to(target, dtype)
        # The host has all dtypes: what is cast is cast there.
        moved = tensor
        if target != source and target == HOST:
            moved = self._of.move(moved, target, "to")
        if dtype is not None or layout is not None or copy:
            is_copied = copy and moved is tensor
            moved = moved.to(dtype or tensor.dtype, copy=is_copied, memory_format=layout)
        if target not in (source, HOST):
            moved = self._of.move(moved, target, "to")
        return moved

    def _tolist(self, tensor: torch.Tensor) -> Any:
        if self._of.owner_of(tensor) != HOST:
            self._of.record("read", "tolist")
        return tensor.tolist()

    def _numpy(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        device = self._of.owner_of(tensor)
        if device != HOST:
            raise DeviceError(f"NumPy cannot read a tensor on {device}; copy it to the host first")
        return tensor.numpy()


def _tensors(values: Any) -> list[torch.Tensor]:
    """Those in lists, tuples and dictionaries of any depth."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (list, tuple)):
        return []
    return [tensor for value in values for tensor in _tensors(value)]


def _mixed(func: Any, devices: Sequence[torch.device]) -> DeviceError:
    actual = ", ".join(dict.fromkeys(map(str, devices)))
    return DeviceError(f"{func.overloadpacket.__name__} of tensors on {actual}, at {_place()}")
