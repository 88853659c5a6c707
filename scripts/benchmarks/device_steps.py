"""How long a step takes on a device: eager, captured, and at the least."""

import itertools
import statistics
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch

from copyspec_eval.decoding.forward import Part, forward
from copyspec_eval.decoding.modules import engine_kernels
from copyspec_eval.decoding.repeated_steps import steps_for
from copyspec_eval.decoding.stopwatch import wait_for
from copyspec_eval.types import ExactMode

CONTEXT, EXTENT = 960, 1024
"""Tokens before a timed step, and keys that it attends to, the same at every width."""
_WARM_UP, _GENERATED = 3, 32


@torch.inference_mode()
def time_steps(
    model: Any, batch_size: int, modes: Sequence[ExactMode], rounds: int
) -> Iterator[dict[str, Any]]:
    """Rows of median milliseconds of an engine's step; the modes take turns, against drift."""
    vocabulary = min(1000, model.config.vocab_size)
    ids = torch.randint(vocabulary, (batch_size, EXTENT)).tolist()
    steps: dict[ExactMode, Callable[[], torch.Tensor]] = {}
    first: dict[ExactMode, float] = {}
    with engine_kernels(model, exact=True) as weights:
        for mode in modes:
            started = perf_counter()
            steps[mode] = _prepare(model, weights, ids, mode)
            first[mode] = perf_counter() - started
        seconds: dict[ExactMode, list[float]] = {mode: [] for mode in modes}
        for _, mode in itertools.product(range(_WARM_UP + rounds), modes):
            seconds[mode].append(_seconds(model.device, steps[mode]))
        for mode in modes:
            yield {
                "batch_size": batch_size,
                "width": mode.width,
                "steps": mode.steps,
                "ms": _milliseconds(seconds[mode][_WARM_UP:]),
                "seconds": round(first[mode], 1),  # to prepare it
                "is_finite": bool(steps[mode]().isfinite().all()),
            }


def _prepare(
    model: Any, weights: Hashable, ids: Sequence[list[int]], mode: ExactMode
) -> Callable[[], torch.Tensor]:
    """A step of `mode` after a context in each row."""
    assert mode.width is not None
    steps = steps_for(model, weights, len(ids), EXTENT, mode)
    if mode.steps == "captured":
        steps.capture(model, mode.width, EXTENT)
    for row, token_ids in enumerate(ids):
        forward(model, steps.cache, [Part(row, 0, token_ids[:CONTEXT])], 1)
    end = CONTEXT + mode.width
    parts = [Part(row, CONTEXT, token_ids[CONTEXT:end]) for row, token_ids in enumerate(ids)]
    return lambda: steps.read(model, parts, EXTENT)[0]


def generate_milliseconds(model: Any, rounds: int) -> float:
    """Of a token of `model.generate` as users run it: greedy, batch 1, after the same context."""
    ids = torch.randint(min(1000, model.config.vocab_size), (1, CONTEXT), device=model.device)
    options = {"do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}

    def generate(count: int) -> None:
        model.generate(ids, min_new_tokens=count, max_new_tokens=count, **options)

    seconds = [
        [_seconds(model.device, partial(generate, count)) for count in (1, 1 + _GENERATED)]
        for _ in range(1 + rounds)
    ]
    return _milliseconds([(most - least) / _GENERATED for least, most in seconds[1:]])


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
    everything: int = sum(weight.nbytes for weight in model.parameters())
    return everything - (0 if is_tied else embeddings.weight.nbytes)


def token_bytes(model: Any) -> int:
    """Bytes of the keys and values of a token."""
    config = model.config.get_text_config()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    num_bytes: int = 2 * config.num_hidden_layers * heads * head_dim * model.dtype.itemsize
    return num_bytes


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
