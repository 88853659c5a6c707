"""Steps of one shape, for exact mode at a fixed width: inputs filled in place, and one graph."""

from collections.abc import Callable, Collection, Sequence
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


def can_capture(model: PreTrainedModel) -> bool:
    """Whether a CUDA graph can hold a step of `model`: all of it is on one GPU."""
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    return len(devices) == 1 and devices.pop().type == "cuda"


def fixed_steps(model: PreTrainedModel, num_rows: int, mode: ExactMode) -> "FixedSteps":
    """Those of all engines of a model, one of which runs at a time: plain decoding's as well."""
    made = _shared.setdefault(model, {})
    if (num_rows, mode) not in made:
        made[num_rows, mode] = FixedSteps(input_device(model), num_rows, mode)
    return made[num_rows, mode]


class FixedSteps:
    """Steps of `mode.width` tokens in each of `num_rows` rows, and the caches that they read.

    From one step to the next only the contents of two buffers change, the tokens and their places,
    so that a step can be captured as a CUDA graph, which launches all its kernels at once: on a GPU
    a step is otherwise bound by launching them. A graph knows the addresses of what it reads. So
    each number of keys has a cache of its own, which stays for the next requests.
    """

    def __init__(self, device: torch.device, num_rows: int, mode: ExactMode) -> None:
        assert mode.width is not None
        self._device, self._num_rows, self._width = device, num_rows, mode.width
        self._kind = mode.steps
        self._steps: dict[int, _Step] = {}
        self._runs: dict[int, _Run] = {}
        self._addresses: list[int] = []

    def extent(self, length: int) -> int:
        """How many keys steps attend to where `length` are needed; of graphs there are few."""
        return key_extent(length) if self._kind == "eager" else _capacity(length)

    def begin(self, model: PreTrainedModel, extents: Collection[int]) -> None:
        """Prepare for requests that need `extents`, within `engine_kernels`; makes new graphs.

        Raises:
            ModelError: that fails.
        """
        for step in self._steps.values():
            step.cache.clear()
        if self._kind == "eager":
            return
        addresses = [tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())]
        if addresses != self._addresses:
            self._runs.clear()
            self._addresses = addresses
        for extent in sorted({*extents} - self._runs.keys()):
            with announced(f"preparing steps for {extent:,} tokens of context and answer"):
                self._make_graph(model, extent)

    def cache(self, extent: int) -> RowCache:
        """The cache of requests that need `extent`."""
        return self._step(extent).cache

    def read(self, model: PreTrainedModel, parts: Sequence[Part], extent: int) -> torch.Tensor:
        """Read a part per row, all of the width; logits `[tokens, vocabulary]`."""
        ids = [token for part in parts for token in part.token_ids]
        slots = [part.start + place for part in parts for place in range(self._width)]
        step = self._step(extent)
        step.prepare(torch.tensor([ids, slots]), extent)
        if self._kind == "eager":
            return step(model, extent)  # type: ignore[no-any-return]
        # The next replay of the graph overwrites its output.
        return self._runs[extent](model, extent).clone()

    def _step(self, extent: int) -> "_Step":
        capacity = _capacity(extent)
        if capacity not in self._steps:
            self._steps[capacity] = _Step(self._device, self._num_rows, self._width, capacity)
        return self._steps[capacity]

    @torch.inference_mode()
    def _make_graph(self, model: PreTrainedModel, extent: int) -> None:
        step, rows = self._step(extent), range(self._num_rows)
        parts = [Part(row, 0, [0] * self._width) for row in rows]
        forward(model, step.cache, parts[:1])  # makes the cache
        step.prepare(torch.tensor([[0] * self._width * self._num_rows] * 2), extent)
        make = _captured if self._kind == "captured" else _compiled
        try:
            self._runs[extent] = make(step, model, extent)
            first = [self.read(model, parts, extent) for _ in range(_WARM_UP)][-1]
            others = [Part(row, 1 + row, range(1, 1 + self._width)) for row in rows]
            logits, expected = self.read(model, others, extent), step(model, extent)
            # A graph that does not read its inputs would pass the check of exactness.
            is_right = torch.equal(logits, expected)
            if self._kind == "compiled":  # which rounds differently
                off, unlike = (torch.dist(logits, each) for each in (expected, first))
                is_right = bool(off < unlike)
            if not is_right:
                raise ModelError("it gives other logits")
        except Exception as error:  # whatever a compiler or CUDA raises
            self._runs.pop(extent, None)
            reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            remedy = "compile=False" if self._kind == "compiled" else "exact=False"
            message = f"a step cannot be {self._kind} ({reason}); pass {remedy}"
            raise ModelError(message) from error
        step.cache.clear()


def _capacity(length: int) -> int:
    return max(_FEWEST_KEYS, 1 << (length - 1).bit_length())


class _Step(torch.nn.Module):
    """What is captured or compiled. A compiler relies on the addresses of a module's buffers."""

    rows: torch.Tensor
    token_ids: torch.Tensor
    slots: torch.Tensor

    def __init__(self, device: torch.device, num_rows: int, width: int, capacity: int) -> None:
        super().__init__()
        rows = torch.arange(num_rows, device=device).repeat_interleave(width)
        self._inputs = torch.stack([rows, rows])
        for name, tensor in zip(("rows", "token_ids", "slots"), (rows, *self._inputs), strict=True):
            self.register_buffer(name, tensor, persistent=False)
        self._parts = [(row, slice(row * width, (row + 1) * width)) for row in range(num_rows)]
        self.cache = RowCache(num_rows, capacity)

    def prepare(self, inputs: torch.Tensor, extent: int) -> None:
        """Fill the buffers with token ids and slots, `[2, tokens]`, in one copy."""
        self._inputs.copy_(inputs)
        self.cache.place(self.rows, self.slots, extent)

    def forward(self, model: PreTrainedModel, extent: int) -> torch.Tensor:
        keys = torch.arange(extent, device=self.slots.device)
        visible = keys <= self.slots[:, None]
        places = keys.expand(len(self.slots), extent)
        where = self.rows, self.slots, self._parts
        step = Step(visible[None, None], self.slots[None], places[None], *where)
        return run(model, self.cache, self.token_ids, step)


_Run = Callable[[PreTrainedModel, int], torch.Tensor]
"""`_Step.forward`, in another way."""


def _captured(step: _Step, model: PreTrainedModel, extent: int) -> _Run:
    """Replays the kernels of the step, and so gives the bits that it gives."""
    with torch.cuda.device(step.slots.device):
        # Libraries set themselves up in their first calls, which cannot be captured.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step(model, extent)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output: torch.Tensor = step(model, extent)

    def replay(model: PreTrainedModel, extent: int) -> torch.Tensor:
        graph.replay()
        return output

    return replay


def _compiled(step: _Step, model: PreTrainedModel, extent: int) -> _Run:
    """Fewer kernels, and so other bits; takes half a minute for a model of 30 layers."""
    for (layer, kind), tensor in step.cache.tensors().items():
        step.register_buffer(f"{kind}_{layer}", tensor, persistent=False)
    # All widths, models and numbers of keys count together, and torch allows 8.
    limits: Any = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _MOST_GRAPHS)
    run = torch.compile(step, fullgraph=True, dynamic=False, mode="reduce-overhead")

    def replay(model: PreTrainedModel, extent: int) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return run(model, extent)  # type: ignore[no-any-return]

    return replay
