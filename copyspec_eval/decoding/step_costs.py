"""Measured seconds of a step by the number of draft tokens that it verifies."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.choosing import argmax_tokens
from copyspec_eval.decoding.serving import forward, served

_EXTENT = 512
_ROUNDS = 5


@torch.inference_mode()
def measure_step_costs(
    model: PreTrainedModel, batch_size: int, num_draft_tokens: int
) -> dict[int, float]:
    """Seconds of a step by its number of draft tokens: 0, 1, 3, 7, … and `num_draft_tokens`.

    After one warm-up, every width is timed five times in turn with the others, at the end of a
    context of 512 tokens; the median counts.

    Args:
        model: the model, warm.
        batch_size: rows side by side, all of them equally wide.
        num_draft_tokens: the most draft tokens of a row.
    """
    doubled = [(1 << power) - 1 for power in range(num_draft_tokens.bit_length())]
    counts = sorted({*doubled, num_draft_tokens})
    cache = RowCache(batch_size, _EXTENT)
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    with served(model, exact=False):
        for _ in range(1 + _ROUNDS):
            for count in counts:
                ids = torch.zeros(batch_size, 1 + count, dtype=torch.long, device=model.device)
                started = perf_counter()
                argmax_tokens(forward(model, cache, 0, ids, _EXTENT - 1 - count, _EXTENT))
                seconds[count].append(perf_counter() - started)
    return {count: median(of_count[1:]) for count, of_count in seconds.items()}
