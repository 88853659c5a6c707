"""Steps of one shape, for exact mode at a fixed width: inputs filled in place, and one graph."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.attention import Step
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.forward import Part, key_extent, run
from copyspec_eval.decoding.model_support import input_device
from copyspec_eval.errors import ModelError
from copyspec_eval.types import ExactMode

_FEWEST_KEYS = 1024
_MOST_GRAPHS = 64

_shared: WeakKeyDictionary[PreTrainedModel, dict[tuple[int, ExactMode], "FixedSteps"]]
_shared = WeakKeyDictionary()


def fixed_steps(model: PreTrainedModel, num_rows: int, mode: ExactMode) -> "FixedSteps":
    """Those of all engines of a model, one of which runs at a time: plain decoding's as well."""
    made = _shared.setdefault(model, {})
    if (num_rows, mode) not in made:
        made[num_rows, mode] = FixedSteps(input_device(model), num_rows, mode)
    return made[num_rows, mode]


class FixedSteps:
    """Steps of `mode.width` tokens in each of `num_rows` rows, and the cache that they read.

    From one step to the next only the contents of two buffers change, the tokens and their places,
    so that a compiled step can be captured as a CUDA graph. The cache stays for the next requests,
    since a graph knows its address.
    """

    def __init__(self, device: torch.device, num_rows: int, mode: ExactMode) -> None:
        assert mode.width is not None
        self._num_rows, self._width, self._is_compiled = num_rows, mode.width, mode.is_compiled
        self._module = _Step(device, num_rows, mode.width)
        self._run: Any = self._module
        if mode.is_compiled:
            # All widths, models and numbers of keys count together, and torch allows 8.
            limits: Any = torch._dynamo.config
            limits.recompile_limit = max(limits.recompile_limit, _MOST_GRAPHS)
            self._run = torch.compile(
                self._module, fullgraph=True, dynamic=False, mode="reduce-overhead"
            )

    def extent(self, length: int) -> int:
        """How many keys steps attend to where `length` are needed: few numbers, if compiled."""
        if not self._is_compiled:
            return key_extent(length)
        return max(_FEWEST_KEYS, 1 << (length - 1).bit_length())

    def reserve(self, capacity: int) -> RowCache:
        """The empty cache of the next requests, with room for `capacity` tokens in each row."""
        if self.cache.capacity < capacity:
            self._module.cache = RowCache(self._num_rows, capacity)
        self.cache.clear()
        return self.cache

    @property
    def cache(self) -> RowCache:
        return self._module.cache

    def read(self, model: PreTrainedModel, parts: Sequence[Part], extent: int) -> torch.Tensor:
        """Read a part per row, all of the width; logits `[tokens, vocabulary]`."""
        ids = [token for part in parts for token in part.token_ids]
        slots = [part.start + place for part in parts for place in range(self._width)]
        self._module.prepare(torch.tensor([ids, slots]), extent)
        if not self._is_compiled:
            return self._run(model, extent)  # type: ignore[no-any-return]
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        try:
            # The next replay of the graph overwrites its output.
            return self._run(model, extent).clone()  # type: ignore[no-any-return]
        except Exception as error:  # whatever a compiler raises, at a new number of keys too
            reason = str(error).strip().partition("\n")[0]
            raise ModelError(
                f"a compiled step fails ({type(error).__name__}: {reason}); pass compile=False"
            ) from error


class _Step(torch.nn.Module):
    """What is compiled. A graph may rely on the addresses of a module's buffers."""

    rows: torch.Tensor
    token_ids: torch.Tensor
    slots: torch.Tensor

    def __init__(self, device: torch.device, num_rows: int, width: int) -> None:
        super().__init__()
        rows = torch.arange(num_rows, device=device).repeat_interleave(width)
        self._inputs = torch.stack([rows, rows])
        for name, tensor in zip(("rows", "token_ids", "slots"), (rows, *self._inputs), strict=True):
            self.register_buffer(name, tensor, persistent=False)
        self._parts = [(row, slice(row * width, (row + 1) * width)) for row in range(num_rows)]
        self.cache = RowCache(num_rows, 0)
        self._states = torch.nn.Module()
        self._registered: RowCache | None = None

    def prepare(self, inputs: torch.Tensor, extent: int) -> None:
        """Fill the buffers with token ids and slots, `[2, tokens]`, in one copy."""
        self._inputs.copy_(inputs)
        self.cache.place(self.rows, self.slots, extent)
        if self._registered is not self.cache:
            self._registered, self._states = self.cache, torch.nn.Module()
            for (layer, kind), tensor in self.cache.tensors().items():
                self._states.register_buffer(f"{kind}_{layer}", tensor, persistent=False)

    def forward(self, model: PreTrainedModel, extent: int) -> torch.Tensor:
        keys = torch.arange(extent, device=self.slots.device)
        visible = keys <= self.slots[:, None]
        places = keys.expand(len(self.slots), extent)
        step = Step(visible[None, None], self.slots[None], places[None], self.rows, self._parts)
        return run(model, self.cache, self.token_ids, step)
