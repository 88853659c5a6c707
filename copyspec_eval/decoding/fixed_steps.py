"""Steps of one shape, for exact mode at a fixed width: inputs filled in place, and one graph."""

from collections.abc import Callable, Collection, Sequence
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
        self._is_captured = mode.steps == "captured"
        self._steps: dict[int, _Step] = {}
        self._replays: dict[int, Callable[[], torch.Tensor]] = {}
        self._addresses: list[int] = []

    def extent(self, length: int) -> int:
        """How many keys steps attend to where `length` are needed; of graphs there are few."""
        return _capacity(length) if self._is_captured else key_extent(length)

    def begin(self, model: PreTrainedModel, extents: Collection[int]) -> None:
        """Prepare for requests that need `extents`, within `engine_kernels`; makes new graphs.

        Raises:
            ModelError: that fails.
        """
        for step in self._steps.values():
            step.cache.clear()
        if not self._is_captured:
            return
        addresses = [tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())]
        if addresses != self._addresses:
            self._replays.clear()
            self._addresses = addresses
        for extent in sorted({*extents} - self._replays.keys()):
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
        if not self._is_captured:
            return step.logits(model, extent)
        # The next replay of the graph overwrites its output.
        return self._replays[extent]().clone()

    def _step(self, extent: int) -> "_Step":
        capacity = _capacity(extent)
        if capacity not in self._steps:
            self._steps[capacity] = _Step(self._device, self._num_rows, self._width, capacity)
        return self._steps[capacity]

    @torch.inference_mode()
    def _make_graph(self, model: PreTrainedModel, extent: int) -> None:
        step, tokens = self._step(extent), range(self._width)
        forward(model, step.cache, [Part(0, 0, tokens)])  # makes the cache
        step.prepare(torch.zeros(2, self._num_rows * self._width, dtype=torch.long), extent)
        try:
            self._replays[extent] = _captured(step, model, extent)
            # A graph that does not read its inputs would pass the check of exactness.
            parts = [Part(row, 1 + row, tokens) for row in range(self._num_rows)]
            if not torch.equal(self.read(model, parts, extent), step.logits(model, extent)):
                raise ModelError("it gives other logits")
        except Exception as error:  # whatever CUDA raises
            self._replays.pop(extent, None)
            reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            message = f"a step cannot be captured ({reason}); pass exact=False"
            raise ModelError(message) from error
        step.cache.clear()


def _capacity(length: int) -> int:
    return max(_FEWEST_KEYS, 1 << (length - 1).bit_length())


class _Step:
    """What is captured: reads from buffers that stay, and writes to a cache that stays."""

    def __init__(self, device: torch.device, num_rows: int, width: int, capacity: int) -> None:
        self.rows = torch.arange(num_rows, device=device).repeat_interleave(width)
        self._inputs = torch.stack([self.rows, self.rows])
        self.token_ids, self.slots = self._inputs
        self._parts = [(row, slice(row * width, (row + 1) * width)) for row in range(num_rows)]
        self.cache = RowCache(num_rows, capacity)

    def prepare(self, inputs: torch.Tensor, extent: int) -> None:
        """Fill the buffers with token ids and slots, `[2, tokens]`, in one copy."""
        self._inputs.copy_(inputs)
        self.cache.place(self.rows, self.slots, extent)

    def logits(self, model: PreTrainedModel, extent: int) -> torch.Tensor:
        keys = torch.arange(extent, device=self.slots.device)
        visible = keys <= self.slots[:, None]
        places = keys.expand(len(self.slots), extent)
        where = self.rows, self.slots, self._parts
        step = Step(visible[None, None], self.slots[None], places[None], *where)
        return run(model, self.cache, self.token_ids, step)


def _captured(step: _Step, model: PreTrainedModel, extent: int) -> Callable[[], torch.Tensor]:
    """Replays the kernels of `step.logits`, and so gives its bits."""
    with torch.cuda.device(step.slots.device):
        # Libraries set themselves up in their first calls, which cannot be captured.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step.logits(model, extent)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = step.logits(model, extent)

    def replay() -> torch.Tensor:
        graph.replay()
        return output

    return replay
