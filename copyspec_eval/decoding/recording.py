"""Records what a forward calls on a CPU, to call it again without the Python of its modules."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from copyspec_eval.decoding import kernels


class Recording(TorchDispatchMode):
    """The calls of a forward: torch's operations among our kernels.

    Args:
        memory: shared by recordings of which one is used at a time.

    Attributes:
        is_complete: whether calling them again does what the forward would do.
    """

    def __init__(self, memory: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory, self._num_empty = memory, 0
        self._calls: list[Callable[[], Any]] = []
        self._tensors: list[Any] = []
        self.is_complete = True

    def record(self, forward: Callable[[], torch.Tensor], is_watched: bool) -> torch.Tensor:
        """Make a forward; to watch whether its Python reads a tensor costs as much as a forward."""
        reads = _Reads()
        with self, reads if is_watched else nullcontext(), kernels.recorded_by(self._calls):
            self._output = forward()
        self.is_complete &= not reads.is_any
        return self._output

    def repeat(self) -> torch.Tensor:
        for call in self._calls:
            call()
        return self._output

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if "empty" in func._schema.name and result.is_contiguous():
            result = self.shared(result)
        elif func._schema.is_mutable:
            self._calls.append(partial(func, *args, **kwargs))
        elif func is torch.ops.aten.add.Tensor and args[0].dtype == result.dtype:
            self._calls.append(partial(torch.add, *args, **kwargs, out=result))
        elif not _is_view(result, args):
            self._calls.append(partial(_again, result, func, args, kwargs))
            is_fixed = torch.Tag.dynamic_output_shape not in func.tags
            self.is_complete &= is_fixed and isinstance(result, torch.Tensor)
        self._tensors.append(result)
        return result

    def shared(self, like: torch.Tensor) -> torch.Tensor:
        """As `torch.empty_like`, in memory that other recordings use as well."""
        memory, index, num_bytes = self._memory, self._num_empty, like.nbytes
        self._num_empty += 1
        if index == len(memory):
            memory.append(torch.empty(0, dtype=torch.uint8))
        if len(memory[index]) < num_bytes:
            memory[index] = torch.empty(1 << (num_bytes - 1).bit_length(), dtype=torch.uint8)
        return memory[index][:num_bytes].view(like.dtype).view(like.shape)


class _Reads(TorchFunctionMode):
    """Notes whether Python reads a tensor's memory, which is no operation of torch."""

    is_any = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.is_any |= func in (torch.Tensor.numpy, torch.Tensor.tolist)
        return func(*args, **(kwargs or {}))


def _is_view(result: Any, args: Any) -> bool:
    """Whether `result`, or each of several, is in an argument's memory, and so has its values."""
    results = result if isinstance(result, tuple | list) else [result]
    memory = [each.untyped_storage().data_ptr() for each in args if isinstance(each, torch.Tensor)]
    return all(
        isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() in memory
        for each in results
    )


def _again(result: torch.Tensor, func: Callable[..., Any], args: Any, kwargs: Any) -> None:
    result.copy_(func(*args, **kwargs))
