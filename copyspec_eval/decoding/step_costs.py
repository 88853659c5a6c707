"""Measured seconds of a step by the number of draft tokens that it verifies."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.announced import announced
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.choosing import argmax_tokens
from copyspec_eval.decoding.model_cache import ModelCacheRunner
from copyspec_eval.decoding.modules import engine_kernels
from copyspec_eval.decoding.steps import Steps
from copyspec_eval.types import CacheKind, ExactMode

_CONTEXT = 512
_ROUNDS = 3
_TIMED_ONCE = 64
"""Tokens of a step beyond which it is timed once."""

_Shape = tuple[int, ...]
"""Tokens of each row."""


@announced("timing this model's steps")
def step_costs(
    model: PreTrainedModel,
    batch_size: int,
    num_draft_tokens: int,
    exact: ExactMode | None,
    cache: CacheKind,
) -> dict[int, float]:
    """Measure the steps of an engine that is made with these arguments."""
    if cache != "copyspec":
        return measure_model_cache_costs(model, num_draft_tokens, cache)
    steps = Steps(model, num_draft_tokens, exact.width if exact else None, batch_size)
    return measure_step_costs(model, batch_size, steps, exact=exact is not None)


@torch.inference_mode()
def measure_step_costs(
    model: PreTrainedModel, batch_size: int, steps: Steps, exact: bool
) -> dict[int, float]:
    """Seconds of a step by its number of draft tokens: 0, 1, 3, 7, … and as many as fit.

    After one warm-up, every shape is timed three times in turn with the others, in a context of 512
    tokens; the median counts. Wide steps take long and vary little: from 64 tokens on they are
    timed once, and from 256 on not at all, since there they cost what their tokens do.

    Where rows have widths of their own, a draft token lengthens the step for all rows and is worth
    something to one: it counts as many times as there are rows.

    Args:
        model: the model, warm.
        batch_size: rows side by side.
        steps: the engine's; where all rows are equally wide, the number is of each row's tokens,
            else of all rows' together.
        exact: as for `modules.engine_kernels`.
    """
    shapes = _shapes(steps, batch_size)
    cache = RowCache(batch_size, _CONTEXT + steps.widest)
    seconds: dict[_Shape, list[float]] = {shape: [] for shape in shapes.values()}
    with engine_kernels(model, exact):
        for number in range(1 + _ROUNDS):
            # The longest first: after one of a thousand tokens, a step finds nothing in the caches.
            for lengths, of_shape in reversed(seconds.items()):
                if number > 1 and sum(lengths) >= _TIMED_ONCE:
                    continue
                started = perf_counter()
                logits = steps.take_empty(cache, _CONTEXT, lengths)
                argmax_tokens(logits, [slice(len(logits))])
                of_shape.append(perf_counter() - started)
    costs = {count: median(seconds[shape][1:]) for count, shape in shapes.items()}
    most = _most_draft_tokens(steps, batch_size)
    if most not in costs:
        (before, earlier), (last, latest) = sorted(costs.items())[-2:]
        costs[most] = latest + (most - last) * (latest - earlier) / (last - before)
    times = batch_size if steps.packs else 1
    return {count: costs[0] + times * (cost - costs[0]) for count, cost in costs.items()}


@torch.inference_mode()
def measure_model_cache_costs(
    model: PreTrainedModel, num_draft_tokens: int, kind: CacheKind
) -> dict[int, float]:
    """As `measure_step_costs`, of a step with the model's own cache.

    Half of the draft is rejected, and what the next step takes longer counts with it: where a cache
    is copied, that is what it takes to read the accepted tokens again.

    Args:
        model: the model, warm.
        num_draft_tokens: of the longest draft.
        kind: of the model's own caches.
    """
    counts = _counts(num_draft_tokens)
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None) or _CONTEXT
    context = [0] * max(1, min(_CONTEXT, limit - num_draft_tokens - 2))
    runner = ModelCacheRunner(model, num_draft_tokens, kind)
    runner.begin(context)
    prompt = runner.cache
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(1 + _ROUNDS):
        for count in reversed(counts):
            runner.resume(prompt)
            seconds[count].append(_seconds_of_two(runner, [*context, 0], count))
    costs = {count: median(seconds[count][1:]) for count in counts}
    return {count: cost - costs[0] / 2 for count, cost in costs.items()}


def _seconds_of_two(runner: ModelCacheRunner, token_ids: list[int], count: int) -> float:
    """Of a step that verifies so many draft tokens, half of them rightly, and one without any."""
    accepted = count // 2
    started = perf_counter()
    for draft, num_rejected in ([0] * count, count - accepted), ([], 0):
        logits = runner.verify(token_ids, draft)
        argmax_tokens(logits, [slice(len(logits))])
        runner.reject(num_rejected)
        token_ids = [*token_ids, *([0] * (accepted + 1))]
    return perf_counter() - started


def _most_draft_tokens(steps: Steps, batch_size: int) -> int:
    return (batch_size if steps.packs else 1) * (steps.widest - 1)


def _counts(most: int) -> list[int]:
    """Numbers of draft tokens that are timed: 0, 1, 3, 7, … and the most."""
    return sorted({*((1 << power) - 1 for power in range(max(1, most).bit_length())), most})


def _shapes(steps: Steps, batch_size: int) -> dict[int, _Shape]:
    """Shapes of steps, by their number of draft tokens."""
    longest = steps.widest - 1
    counts = [count for count in _counts(_most_draft_tokens(steps, batch_size)) if count < 256]
    shapes: dict[int, _Shape] = {}
    for count in counts:
        drafted = [count] * batch_size
        if steps.packs:
            drafted = [max(0, min(count - row * longest, longest)) for row in range(batch_size)]
        shapes[count] = tuple(1 + number for number in drafted)
    return shapes
