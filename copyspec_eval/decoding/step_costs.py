"""Measured seconds of a step by the number of draft tokens that it verifies."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.choosing import argmax_tokens
from copyspec_eval.decoding.exactness import padded
from copyspec_eval.decoding.serving import forward, input_device, served

_CONTEXT = 512
_ROUNDS = 5


@torch.inference_mode()
def measure_step_costs(
    model: PreTrainedModel, batch_size: int, widths: Sequence[int], exact: bool
) -> dict[int, float]:
    """Seconds of a step by its number of draft tokens: 0, 1, 3, 7, … and as many as fit.

    After one warm-up, every width is timed five times in turn with the others, in a context of 512
    tokens; the median counts.

    Args:
        model: the model, warm.
        batch_size: rows side by side, all of them equally wide.
        widths: of the engine's steps, ascending; a draft is padded to the next.
        exact: as for `serving.served`.
    """
    longest = widths[-1] - 1
    doubled = [(1 << power) - 1 for power in range(longest.bit_length())]
    counts = sorted({*doubled, longest})
    extent = _CONTEXT + widths[-1]
    cache = RowCache(batch_size, extent)
    seconds: dict[int, list[float]] = {padded(widths, 1 + count): [] for count in counts}
    with served(model, exact):
        for _ in range(1 + _ROUNDS):
            for width, of_width in seconds.items():
                ids = torch.zeros(batch_size, width, dtype=torch.long, device=input_device(model))
                started = perf_counter()
                argmax_tokens(forward(model, cache, 0, ids, _CONTEXT, extent))
                of_width.append(perf_counter() - started)
    return {count: median(seconds[padded(widths, 1 + count)][1:]) for count in counts}
