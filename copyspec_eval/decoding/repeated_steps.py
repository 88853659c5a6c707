"""An engine's steps, repeated without Python: as CUDA graphs, or kernel by kernel on a CPU.

From one step to the next with as many tokens and keys, only the contents of its inputs change. So
these stay where they are, and what a step launches is noted once: the same kernels on the same
memory, and so the same bits. On a GPU a step is otherwise bound by launching its kernels; on a CPU,
one of few tokens spends as long in the model's modules as in our kernels.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from copyspec_eval.announced import announced
from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.attention import Step
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.forward import Part, forward, key_extent, place, run
from copyspec_eval.decoding.model_copy import PerModel
from copyspec_eval.decoding.recording import Recording
from copyspec_eval.errors import ModelError
from copyspec_eval.types import ExactMode

_KEYS = 2048
"""In a block: of numbers of keys there are few, since each has recordings of its own."""
_FEWEST_KEYS = 1024
_MOST_TOKENS = 64
"""Of a step that is recorded: in wide ones, kernels take nearly all of the time."""
_ROOM = 4
"""Times the room that is needed, since a longer cache would need new recordings. It takes no memory
until it is written to."""
_CHECKED = 4
"""How many repeated steps are compared with the forward in full."""

_TENSORS = ("token_ids", "visible", "positions", "key_positions", "rows", "slots")
"""Of a `Step`."""

_How = Literal["eager", "recorded", "captured"]
_shared: PerModel[dict[tuple[int, _How, int | None], "Steps"]] = PerModel()
"""The steps of all of a model's engines, one of which runs at a time."""


def capacity(length: int) -> int:
    """Keys that steps of a fixed width have room for; of captured ones there are few kinds.

    >>> capacity(5), capacity(1025)
    (1024, 2048)
    """
    return max(_FEWEST_KEYS, 1 << (length - 1).bit_length())


def can_capture(model: PreTrainedModel) -> bool:
    """Whether a CUDA graph can hold a step of `model`: all of it is on one GPU."""
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    return len(devices) == 1 and devices.pop().type == "cuda"


def steps_for(
    model: PreTrainedModel, state: Hashable, num_rows: int, length: int, exact: ExactMode | None
) -> "Steps":
    """Steps with an empty cache of `num_rows` rows, each with room for `length` tokens.

    `model` runs within `engine_kernels`, which gave its `state`.
    """
    is_fixed = exact is not None and exact.width is not None
    how: _How = exact.steps if exact and is_fixed else "recorded" if _records(model) else "eager"
    if how == "eager" and not is_fixed:
        return Steps(how, RowCache(num_rows, length))
    room = capacity(length) if is_fixed else _ROOM * key_extent(length, _KEYS)
    made = _shared.get(model, state, dict)
    # One that is long enough serves, except at a fixed width, whose bits may depend on it.
    kind = num_rows, how, room if is_fixed else None
    if kind not in made or made[kind].cache.capacity < length:
        made[kind] = Steps(how, RowCache(num_rows, room))
    made[kind].cache.clear()
    return made[kind]


def _records(model: PreTrainedModel) -> bool:
    """Whether steps are recorded: not without our kernels, with experts, or with hooks."""
    has_hooks = any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    has_experts = model._can_set_experts_implementation()
    is_on_cpu = all(weight.is_cpu for weight in model.parameters())
    return is_on_cpu and not has_hooks and not has_experts and kernels.serve(model)


class Steps:
    """The forwards of a cache, and those of them that are repeated.

    A model whose Python reads a tensor could do something else for other tokens, so it is not
    recorded. The first repeated steps are compared in bits with the forwards that they stand for;
    if one differs, none is recorded any more.
    """

    def __init__(self, how: _How, cache: RowCache) -> None:
        self._how, self.cache = how, cache
        self._repeats: dict[tuple[int, int], tuple[_Inputs, Callable[[], torch.Tensor]]] = {}
        # Recorded when they are used again: that costs what about two repeats save.
        self._used_once: set[tuple[int, int]] = set()
        self._unchecked = _CHECKED
        self._memory: list[torch.Tensor] = []

    def read(
        self, model: PreTrainedModel, parts: Sequence[Part], extent: int | None = None
    ) -> tuple[torch.Tensor, bool]:
        """As `forward`, and whether it took its usual time; the next step overwrites the logits."""
        num_tokens = sum(len(part.token_ids) for part in parts)
        if self._how == "eager" or (self._how == "recorded" and num_tokens > _MOST_TOKENS):
            return forward(model, self.cache, parts, extent=extent), True
        needed = max(part.start + len(part.token_ids) for part in parts)
        extent = extent or key_extent(needed, _KEYS)
        step = place(model, self.cache, parts, extent)
        kind = num_tokens, extent
        if kind not in self._repeats:
            if kind in self._used_once:
                return self._record(model, step), False
            self._used_once.add(kind)
            return run(model, self.cache, step), False
        inputs, repeat = self._repeats[kind]
        inputs.fill(step)
        logits = repeat()
        if self._how == "captured" or not self._unchecked:
            return logits, True
        self._unchecked -= 1
        expected = run(model, self.cache, step)
        if not torch.equal(logits, expected):
            self._how = "eager"
        return expected, False

    def _record(self, model: PreTrainedModel, step: Step) -> torch.Tensor:
        recording = Recording(self._memory)
        inputs = _Inputs(step, recording.shared)
        is_watched = len(self._repeats) < _CHECKED
        logits = recording.record(partial(inputs.run, model, self.cache), is_watched)
        # Blocks of torch's attention are those of this step's rows.
        if recording.is_complete and not inputs.step.masked_blocks:
            self._repeats[len(step.token_ids), step.visible.shape[-1]] = inputs, recording.repeat
        else:
            self._how = "eager"
        return logits

    @torch.inference_mode()
    def capture(self, model: PreTrainedModel, width: int, extent: int) -> None:
        """Capture the step in which each row has `width` tokens, and sees `extent` keys.

        Raises:
            ModelError: that fails.
        """
        rows = range(self.cache.num_rows)
        if (kind := (width * len(rows), extent)) in self._repeats:
            return
        with announced(f"preparing steps for {extent:,} tokens of context and answer"):
            first = [Part(row, 0, [0] * width) for row in rows]
            inputs = _Inputs(place(model, self.cache, first, extent))
            try:
                inputs.run(model, self.cache)  # makes the cache
                make = partial(inputs.run, model, self.cache)
                self._repeats[kind] = inputs, _captured(make, model.device)
                # A graph that does not read its inputs would pass the check of exactness.
                others = [Part(row, 1 + row, [1] * width) for row in rows]
                logits, _ = self.read(model, others, extent)
                if not torch.equal(logits, forward(model, self.cache, others, extent=extent)):
                    raise ModelError("it gives other logits")
            except Exception as error:  # whatever CUDA raises
                self._repeats.pop(kind, None)
                reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                message = f"a step cannot be captured ({reason}); pass exact=False"
                raise ModelError(message) from error
        self.cache.clear()


class _Inputs:
    """The tensors that a repeated step reads, which stay where they are."""

    def __init__(
        self, step: Step, memory_for: Callable[[torch.Tensor], torch.Tensor] = torch.empty_like
    ) -> None:
        mine: Any = {name: memory_for(getattr(step, name)) for name in _TENSORS}
        self.step: Step = replace(step, **mine)
        self.fill(step)

    def fill(self, step: Step) -> None:
        for name in _TENSORS:
            getattr(self.step, name).copy_(getattr(step, name))

    def run(self, model: PreTrainedModel, cache: RowCache) -> torch.Tensor:
        self.step = replace(self.step, masked_blocks=[])
        return run(model, cache, self.step)


def _captured(make: Callable[[], torch.Tensor], device: torch.device) -> Callable[[], torch.Tensor]:
    """Replays the kernels that `make` launches on a GPU, and so gives its bits."""
    with torch.cuda.device(device):
        # Libraries set themselves up in their first calls, which cannot be captured.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            make()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = make()

    def replay() -> torch.Tensor:
        graph.replay()
        return output

    return replay
