"""Steps that were recorded once: the kernels that they call, without the Python that calls them.

On a CPU, a step of few tokens spends as long in a model's modules as in our kernels. From one step
to the next with as many tokens, only the contents of its inputs change. So a step's calls are
recorded, and its tensors kept; from then on its inputs are filled and the calls made again, with
the same bits.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.attention import Step
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.forward import Part, forward, place, run
from copyspec_eval.decoding.model_copy import model_structure

_KEYS = 1024
_MOST_TOKENS = 64
"""Of a step that is recorded: in wide ones, kernels take nearly all of the time."""
_WORTH = 3
"""The use at which a kind of step is recorded: that costs what about so many repeats save."""
_CHECKED = 4
"""How many repeated steps are compared with the forward in full."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")

_shared: WeakKeyDictionary[PreTrainedModel, dict[int, "RecordedSteps"]] = WeakKeyDictionary()


def recorded_steps(
    model: PreTrainedModel, weights: Hashable, num_rows: int, extent: int
) -> "RecordedSteps | None":
    """Those of all engines of a model, one of which runs at a time, with room for `extent` tokens.

    None where steps are not recorded: without our kernels, with experts, or with hooks.
    """
    modules = [vars(module) for module in model.modules()]
    has_hooks = any(module[name] for module in modules for name in _HOOKS)
    is_on_cpu = all(weight.is_cpu for weight in model.parameters())
    has_experts = model._can_set_experts_implementation()
    if has_hooks or has_experts or not (is_on_cpu and kernels.serve(model)):
        return None
    # The check at load makes windows shorter for a moment.
    state = weights, model_structure(model)
    shared = _shared.setdefault(model, {})
    steps = shared.get(num_rows)
    if steps is None or steps.state != state or steps.cache.capacity < extent:
        steps = shared[num_rows] = RecordedSteps(state, RowCache(num_rows, _rounded(extent)))
    steps.cache.clear()
    return steps


class RecordedSteps:
    """The forwards of a cache: recorded when made often, then repeated; wide ones are made in full.

    A model whose Python reads a tensor could do something else for other tokens, so it is not
    recorded. The first repeated steps are compared in bits with the forwards that they stand for;
    if one differs, none is recorded any more. Recordings share memory: one is used at a time.

    Attributes:
        state: what the model was when they were recorded.
    """

    def __init__(self, state: Hashable, cache: RowCache) -> None:
        self.state, self.cache = state, cache
        self._is_recording = True
        self._steps: dict[tuple[int, int], _Recording] = {}
        self._uses: Counter[tuple[int, int]] = Counter()
        self._unchecked = _CHECKED
        self._memory: list[torch.Tensor] = []

    def read(self, model: PreTrainedModel, parts: Sequence[Part]) -> tuple[torch.Tensor, bool]:
        """As `forward`, and whether it took its usual time; the next step overwrites the logits."""
        num_tokens = sum(len(part.token_ids) for part in parts)
        if not self._is_recording or num_tokens > _MOST_TOKENS:
            return forward(model, self.cache, parts), True
        extent = _rounded(max(part.start + len(part.token_ids) for part in parts))
        tokens, step = place(model, self.cache, parts, extent)
        kind = num_tokens, extent
        self._uses[kind] += 1
        if self._uses[kind] < _WORTH:
            return run(model, self.cache, tokens, step), False
        if (known := self._steps.get(kind)) is None:
            made = self._steps[kind] = _Recording(self._memory, tokens, step, extent)
            self._is_recording = made.record(model, self.cache)
            return made.logits, False
        logits = known.repeat(tokens, step)
        if not self._unchecked:
            return logits, True
        self._unchecked -= 1
        expected = run(model, self.cache, tokens, step)
        self._is_recording = torch.equal(logits, expected)
        return expected, False


def _rounded(extent: int) -> int:
    """Of numbers of keys there are few, since each has recordings of its own."""
    return -(-extent // _KEYS) * _KEYS


class _Recording(TorchDispatchMode):
    """The calls of one step: torch's operations among the kernels'; `logits` is what they write."""

    logits: torch.Tensor

    def __init__(
        self, memory: list[torch.Tensor], tokens: torch.Tensor, step: Step, extent: int
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory, self._num_empty = memory, 0
        empty = [torch.empty(each.shape, dtype=each.dtype) for each in _inputs(tokens, step)]
        self._inputs = [self._shared(each) for each in empty]
        self._fill(tokens, step)
        self._parts = step.parts
        self._extent = extent
        self._calls: list[Callable[[], Any]] = []
        self._tensors: list[Any] = []
        self._is_complete = True

    def record(self, model: PreTrainedModel, cache: RowCache) -> bool:
        """Make the step; whether all of it can be repeated."""
        tokens, rows, slots, visible, positions, key_positions = self._inputs
        cache.place(rows, slots, self._extent)
        step = Step(visible, positions, key_positions, rows, slots, self._parts)
        with self, _Reads() as reads, kernels.recorded_by(self._calls):
            self.logits = run(model, cache, tokens, step)
        # Blocks of torch's attention are those of this step's rows.
        return self._is_complete and not reads.is_any and not step.masked_blocks

    def repeat(self, tokens: torch.Tensor, step: Step) -> torch.Tensor:
        self._fill(tokens, step)
        for call in self._calls:
            call()
        return self.logits

    def _fill(self, tokens: torch.Tensor, step: Step) -> None:
        for mine, new in zip(self._inputs, _inputs(tokens, step), strict=True):
            mine.copy_(new)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if "empty" in func._schema.name and result.is_contiguous():
            result = self._shared(result)
        elif func._schema.is_mutable:
            self._calls.append(partial(func, *args, **kwargs))
        elif func is torch.ops.aten.add.Tensor and args[0].dtype == result.dtype:
            self._calls.append(partial(torch.add, *args, **kwargs, out=result))
        elif not _is_view(result, args):
            self._calls.append(partial(_again, result, func, args, kwargs))
            is_fixed = torch.Tag.dynamic_output_shape not in func.tags
            self._is_complete &= is_fixed and isinstance(result, torch.Tensor)
        self._tensors.append(result)
        return result

    def _shared(self, empty: torch.Tensor) -> torch.Tensor:
        """As `empty`, in memory that other recordings use as well."""
        memory, index, num_bytes = self._memory, self._num_empty, empty.nbytes
        self._num_empty += 1
        if index == len(memory):
            memory.append(torch.empty(0, dtype=torch.uint8))
        if len(memory[index]) < num_bytes:
            memory[index] = torch.empty(1 << (num_bytes - 1).bit_length(), dtype=torch.uint8)
        return memory[index][:num_bytes].view(empty.dtype).view(empty.shape)


class _Reads(TorchFunctionMode):
    """Notes whether Python reads a tensor's memory, which is no operation of torch."""

    is_any = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.is_any |= func in (torch.Tensor.numpy, torch.Tensor.tolist)
        return func(*args, **(kwargs or {}))


def _inputs(tokens: torch.Tensor, step: Step) -> list[torch.Tensor]:
    places = step.rows, step.slots
    return [tokens, *places, step.visible, step.positions, step.key_positions]


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
