"""Steps of one shape, for exact mode at a fixed width: inputs filled in place, and one graph."""

from collections.abc import Collection, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from copyspec_eval.announced import announced
from copyspec_eval.decoding.attention import Step
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.forward import Part, forward, key_extent, run
from copyspec_eval.decoding.model_support import input_device
from copyspec_eval.errors import ModelError
from copyspec_eval.types import ExactMode

_FEWEST_KEYS = 1024
_MOST_GRAPHS = 64
_WARM_UP = 3
"""Steps: torch compiles in the first, captures a graph in the second, and replays it later."""

_shared: WeakKeyDictionary[PreTrainedModel, dict[tuple[int, ExactMode], "FixedSteps"]]
_shared = WeakKeyDictionary()


def fixed_steps(model: PreTrainedModel, num_rows: int, mode: ExactMode) -> "FixedSteps":
    """Those of all engines of a model, one of which runs at a time: plain decoding's as well."""
    made = _shared.setdefault(model, {})
    if (num_rows, mode) not in made:
        made[num_rows, mode] = FixedSteps(input_device(model), num_rows, mode)
    return made[num_rows, mode]


class FixedSteps:
    """Steps of `mode.width` tokens in each of `num_rows` rows, and the caches that they read.

    From one step to the next only the contents of two buffers change, the tokens and their places,
    so that a compiled step can be captured as a CUDA graph. A graph knows the address of its cache:
    there is one for each power of two, and they stay for the next requests.
    """

    def __init__(self, device: torch.device, num_rows: int, mode: ExactMode) -> None:
        assert mode.width is not None
        self._device, self._num_rows = device, num_rows
        self._width, self._is_compiled = mode.width, mode.is_compiled
        self._steps: dict[int, _Step] = {}

    def extent(self, length: int) -> int:
        """How many keys steps attend to where `length` are needed: few numbers, if compiled."""
        return _capacity(length) if self._is_compiled else key_extent(length)

    def begin(self, model: PreTrainedModel, extents: Collection[int]) -> None:
        """Prepare for requests that need `extents`, within `engine_kernels`; compiles new steps."""
        for step in self._steps.values():
            step.cache.clear()
        if not self._is_compiled:
            return
        for extent in {*extents} - self._steps.keys():
            with announced(f"compiling steps for {extent:,} tokens of context and answer"):
                self._compile(model, extent)

    def cache(self, extent: int) -> RowCache:
        """The cache of requests that need `extent`."""
        return self._step(extent).cache

    def read(self, model: PreTrainedModel, parts: Sequence[Part], extent: int) -> torch.Tensor:
        """Read a part per row, all of the width; logits `[tokens, vocabulary]`."""
        ids = [token for part in parts for token in part.token_ids]
        slots = [part.start + place for part in parts for place in range(self._width)]
        step = self._step(extent)
        step.prepare(torch.tensor([ids, slots]), extent)
        if not self._is_compiled:
            return step.run(model, extent)  # type: ignore[no-any-return]
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        # The next replay of the graph overwrites its output.
        return step.run(model, extent).clone()  # type: ignore[no-any-return]

    def _step(self, extent: int) -> "_Step":
        capacity = _capacity(extent)
        if capacity not in self._steps:
            self._steps[capacity] = _Step(self._device, self._num_rows, self._width, capacity)
        return self._steps[capacity]

    @torch.inference_mode()
    def _compile(self, model: PreTrainedModel, extent: int) -> None:
        step = self._step(extent)
        parts = [Part(row, 0, [0] * self._width) for row in range(self._num_rows)]
        forward(model, step.cache, parts[:1])  # makes the cache
        try:
            step.compile()
            for _ in range(_WARM_UP):
                self.read(model, parts, extent)
        except Exception as error:  # whatever a compiler raises
            del self._steps[extent]
            reason = str(error).strip().partition("\n")[0]
            raise ModelError(
                f"a compiled step fails ({type(error).__name__}: {reason}); pass compile=False"
            ) from error
        step.cache.clear()


def _capacity(length: int) -> int:
    return max(_FEWEST_KEYS, 1 << (length - 1).bit_length())


class _Step(torch.nn.Module):
    """What is compiled. A graph may rely on the addresses of a module's buffers."""

    rows: torch.Tensor
    token_ids: torch.Tensor
    slots: torch.Tensor

    def __init__(self, device: torch.device, num_rows: int, width: int, capacity: int) -> None:
        super().__init__()
        self.run: Any = self
        rows = torch.arange(num_rows, device=device).repeat_interleave(width)
        self._inputs = torch.stack([rows, rows])
        for name, tensor in zip(("rows", "token_ids", "slots"), (rows, *self._inputs), strict=True):
            self.register_buffer(name, tensor, persistent=False)
        self._parts = [(row, slice(row * width, (row + 1) * width)) for row in range(num_rows)]
        self.cache = RowCache(num_rows, capacity)

    def compile(self) -> None:
        """Compile what `run` does, once the cache has its tensors."""
        for (layer, kind), tensor in self.cache.tensors().items():
            self.register_buffer(f"{kind}_{layer}", tensor, persistent=False)
        # All widths, models and numbers of keys count together, and torch allows 8.
        limits: Any = torch._dynamo.config
        limits.recompile_limit = max(limits.recompile_limit, _MOST_GRAPHS)
        self.run = torch.compile(self, fullgraph=True, dynamic=False, mode="reduce-overhead")

    def prepare(self, inputs: torch.Tensor, extent: int) -> None:
        """Fill the buffers with token ids and slots, `[2, tokens]`, in one copy."""
        self._inputs.copy_(inputs)
        self.cache.place(self.rows, self.slots, extent)

    def forward(self, model: PreTrainedModel, extent: int) -> torch.Tensor:
        keys = torch.arange(extent, device=self.slots.device)
        visible = keys <= self.slots[:, None]
        places = keys.expand(len(self.slots), extent)
        step = Step(visible[None, None], self.slots[None], places[None], self.rows, self._parts)
        return run(model, self.cache, self.token_ids, step)
