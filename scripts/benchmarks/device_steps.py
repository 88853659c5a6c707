"""How long a step's forward takes on a device: eager, captured as a CUDA graph, and at the least."""

import itertools
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch

from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.forward import Part, forward
from copyspec_eval.decoding.modules import engine_kernels
from copyspec_eval.decoding.stopwatch import wait_for

CONTEXT, EXTENT = 1024, 1088
"""Tokens before a timed step, and keys that it attends to, the same at every width."""
_WARM_UP = 3


class _Captured:
    """A model whose forward is captured at its first call; `graph.replay()` repeats it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.graph: Any = None
        self.output: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, **inputs: Any) -> Any:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                self._model(**inputs)
        torch.cuda.current_stream().wait_stream(side)
        self.inputs, self.graph = inputs, torch.cuda.CUDAGraph()  # the graph reads their memory
        with torch.cuda.graph(self.graph):
            self.output = self._model(**inputs)
        self.graph.replay()
        return self.output


@torch.inference_mode()
def time_steps(
    model: Any, batch_sizes: Sequence[int], widths: Sequence[int], rounds: int
) -> list[dict[str, Any]]:
    """Rows of median milliseconds; the widths take turns, so that drift hits all of them."""
    rows = []
    for batch_size in batch_sizes:
        cache = RowCache(batch_size, EXTENT)
        ids = torch.randint(min(1000, model.config.vocab_size), (batch_size, CONTEXT)).tolist()
        with engine_kernels(model, exact=True):
            for row in range(batch_size):
                forward(model, cache, [Part(row, 0, ids[row])], CONTEXT, 1)
            parts = {
                width: [Part(row, CONTEXT, ids[row][:width]) for row in range(batch_size)]
                for width in widths
            }
            seconds: dict[int, list[float]] = {width: [] for width in widths}
            for _, width in itertools.product(range(_WARM_UP + rounds), widths):
                step = partial(forward, model, cache, parts[width], EXTENT)
                seconds[width].append(_seconds(model.device, step))
            for width in widths:
                row = {"batch_size": batch_size, "width": width}
                row["eager_ms"] = _milliseconds(seconds[width][_WARM_UP:])
                logits = forward(model, cache, parts[width], EXTENT)
                row["is_finite"] = bool(logits.isfinite().all())
                rows.append(row | _captured(model, cache, parts[width], logits, rounds))
    return rows


def _captured(
    model: Any, cache: RowCache, parts: Sequence[Part], logits: torch.Tensor, rounds: int
) -> dict[str, Any]:
    """Milliseconds as a CUDA graph, whether it gives the bits of `logits`; or why it is not one."""
    if model.device.type != "cuda":
        return {"captured_ms": None, "not_captured": "only on CUDA"}
    captured = _Captured(model)
    try:
        actual = forward(captured, cache, parts, EXTENT)  # type: ignore[arg-type]
    except Exception as error:
        return {"captured_ms": None, "not_captured": first_line(error)}
    seconds = [_seconds(model.device, captured.graph.replay) for _ in range(rounds)]
    is_equal = torch.equal(actual, logits)
    return {"captured_ms": _milliseconds(seconds), "captured_bits_equal": is_equal}


def copy_bandwidth(device: torch.device, num_bytes: int, rounds: int) -> float:
    """Bytes a second that a copy of `num_bytes` reads and writes, at its median."""
    source = torch.ones(num_bytes // 4, device=device)
    target = torch.zeros_like(source)
    seconds = [_seconds(device, partial(target.copy_, source)) for _ in range(_WARM_UP + rounds)]
    return 2 * num_bytes / statistics.median(seconds[_WARM_UP:])


def weight_bytes(model: Any) -> int:
    """Bytes of weights that a step reads: all but embeddings that are not the head as well."""
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    is_tied = head is not None and head.weight is embeddings.weight
    everything = sum(weight.nbytes for weight in model.parameters())
    return everything - (0 if is_tied else embeddings.weight.nbytes)


def token_bytes(model: Any) -> int:
    """Bytes of the keys and values of a token."""
    config = model.config.get_text_config()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return 2 * int(config.num_hidden_layers * heads * head_dim) * model.dtype.itemsize


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _seconds(device: torch.device, act: Callable[[], object]) -> float:
    wait_for(device)
    started = perf_counter()
    act()
    wait_for(device)
    return perf_counter() - started


def _milliseconds(seconds: Sequence[float]) -> float:
    return round(1e3 * statistics.median(seconds), 3)
