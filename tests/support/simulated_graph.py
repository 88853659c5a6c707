"""A CUDA graph that is not there: it records operations, and replays them on the same memory.

As with a real one, Python does not run again in a replay, tensors are read from where they were and
written to where they were, and what makes the host wait cannot be captured.
"""

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, ClassVar
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_aten: Any = torch.ops.aten
_WAITING = {_aten.item, _aten._local_scalar_dense, _aten.nonzero, _aten.equal}


class SimulatedGraph(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stands for `torch.cuda.CUDAGraph`; `made` lists all, `num_replays` counts."""

    made: ClassVar[list["SimulatedGraph"]] = []

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[tuple[Any, Any, Any, Any]] = []
        self.num_replays = 0
        self.made.append(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in _WAITING:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        output = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, output))
        return output

    def __enter__(self) -> "SimulatedGraph":
        name = "is_current_stream_capturing"
        self._capturing = mock.patch.object(torch.cuda, name, return_value=True)
        self._capturing.start()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._capturing.stop()

    def replay(self) -> None:
        self.num_replays += 1
        for func, args, kwargs, output in self._calls:
            again = tree_leaves(func(*args, **kwargs))
            for old, new in zip(tree_leaves(output), again, strict=True):
                if not isinstance(old, torch.Tensor) or old.data_ptr() == new.data_ptr():
                    continue
                if any(isinstance(each, torch.Tensor) for each in tree_leaves((args, kwargs))):
                    old.copy_(new)
                else:
                    # Made of numbers, such as a range: no copy, on a pretended device either.
                    ctypes.memmove(old.data_ptr(), new.data_ptr(), old.nbytes)


@contextmanager
def simulated_graphs() -> Iterator[list[SimulatedGraph]]:
    """Models may be captured, on the CPU; the graphs that were made so far."""
    from copyspec_eval.decoding import exactness, repeated_steps
    from copyspec_eval.decoding.model_copy import PerModel

    stream, nothing = mock.Mock(), lambda *_: nullcontext()
    changes: dict[str, Any] = {"device": nothing, "stream": nothing, "Stream": lambda: stream}
    changes |= {"current_stream": lambda: stream, "CUDAGraph": SimulatedGraph}
    changes["graph"] = lambda graph: graph
    with ExitStack() as stack:
        for name, change in changes.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, change))
        for module in (exactness, repeated_steps):
            stack.enter_context(mock.patch.object(module, "can_capture", return_value=True))
        stack.enter_context(mock.patch.object(repeated_steps, "_shared", PerModel()))
        stack.enter_context(mock.patch.object(SimulatedGraph, "made", []))
        yield SimulatedGraph.made
