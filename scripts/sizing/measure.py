"""Steps of a real model on the CPU, timed, and how fast its memory is."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from copyspec_eval import provenance
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.choosing import argmax_tokens
from copyspec_eval.decoding.forward import Part, forward, key_extent
from copyspec_eval.decoding.modules import engine_kernels
from copyspec_eval.redaction import shareable
from sizing.shapes import shape_of

_CONTEXTS = (128, 2048, 8000)
_WARM_UP, _ROUNDS = 3, 30
_COPIED = 1 << 28
"""Bytes of the tensor that is copied, far more than a processor's caches hold."""


def measure(folder: Path) -> dict[str, Any]:
    """What `results/scaling/measured.json` holds: copies, and steps of one token without drafts."""
    started_at = provenance.started_at()
    copy, rows = _Copy(), []
    for dtype in ("bfloat16", "float32"):
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        rows += [{"dtype": dtype, **timed} for timed in _timed(model, copy)]
    return {
        "shape": asdict(shape_of(model.config)),
        "steps": rows,
        "manifest": {
            "started_at": started_at,
            "command": shareable(provenance.command()),
            "config": {"model": "SmolLM2-135M-Instruct", "threads": torch.get_num_threads()},
            "versions": provenance.versions(),
            "hardware": provenance.hardware(),
        },
    }


class _Copy:
    """A copy by as many threads as torch has."""

    def __init__(self) -> None:
        self._source = torch.ones(_COPIED // 4)
        self._target = torch.zeros_like(self._source)

    def __call__(self) -> None:
        self._target.copy_(self._source)


@torch.inference_mode()
def _timed(model: Any, copy: _Copy) -> Iterator[dict[str, float]]:
    """By context, median seconds of a step with its argmax, and of copies in turn with the steps.

    A shared machine's memory is not equally fast at all times.
    """
    with engine_kernels(model, exact=False):
        for context in _CONTEXTS:
            cache = RowCache(1, key_extent(context + 1))

            def step(cache: RowCache = cache, context: int = context) -> None:
                logits = forward(model, cache, [Part(0, context, [1])])
                argmax_tokens(logits, [slice(1)])

            rounds = [(_seconds(copy), _seconds(step)) for _ in range(_WARM_UP + _ROUNDS)]
            copying, stepping = (median(each[_WARM_UP:]) for each in zip(*rounds, strict=True))
            yield {
                "context": context,
                "seconds": stepping,
                # Read and written.
                "copy_bytes_per_second": 2 * _COPIED / copying,
            }


def _seconds(act: Callable[[], None]) -> float:
    started = perf_counter()
    act()
    return perf_counter() - started
