"""One forward of the model: tokens of one row or several, chains or trees, against the cache."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy
import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding import attention
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.model_support import input_device


def key_extent(length: int, block: int = 64) -> int:
    """Keys that are attended to where `length` are needed: whole blocks, masked keys included.

    >>> key_extent(1), key_extent(128)
    (64, 128)
    """
    return -(-length // block) * block


class Part(NamedTuple):
    """A cache row's tokens in a forward, from position `start` on, each after the one before it.

    With `parents`, those after the first `num_before` are a tree, as in `Draft`, and padding after
    its last node.
    """

    row: int
    start: int
    token_ids: Sequence[int]
    parents: Sequence[int] | None = None
    num_before: int = 0


def forward(
    model: PreTrainedModel,
    cache: RowCache,
    parts: Sequence[Part],
    logits_to_keep: int = 0,
    extent: int | None = None,
) -> torch.Tensor:
    """One forward within `engine_kernels`; logits `[tokens or logits_to_keep, vocabulary]`.

    All tokens stand in a single row, unpadded. Those of a tree are written to the cache in their
    order; each attends to its ancestors alone, at its position on its branch, among `extent` keys,
    or the fewest that hold the parts.
    """
    extent = extent or key_extent(max(part.start + len(part.token_ids) for part in parts))
    return run(model, cache, place(model, cache, parts, extent), logits_to_keep)


def place(
    model: PreTrainedModel, cache: RowCache, parts: Sequence[Part], extent: int
) -> attention.Step:
    """The step that reads `parts`, each token at its place in the cache."""
    ids = [token for part in parts for token in part.token_ids]
    slots = [part.start + index for part in parts for index in range(len(part.token_ids))]
    rows = [part.row for part in parts for _ in part.token_ids]
    # One copy to the device.
    tokens, all_slots, all_rows = torch.tensor([ids, slots, rows]).to(input_device(model)).unbind()
    cache.end = max(cache.end, max(slots) + 1)
    return _step(parts, tokens, all_slots, all_rows, extent)


def run(
    model: PreTrainedModel, cache: RowCache, step: attention.Step, logits_to_keep: int = 0
) -> torch.Tensor:
    """The logits of a step's tokens, or of the last `logits_to_keep`: `[…, vocabulary]`."""
    cache.place(step.rows, step.slots, step.visible.shape[-1])
    # Padding may lie past the last position a model has an embedding for; nobody reads it.
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    with attention.masked_as(step):
        output = model(
            input_ids=step.token_ids[None],
            position_ids=step.positions.clamp(0, limit and limit - 1),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=logits_to_keep,
        )
    logits: torch.Tensor = output.logits[0]
    return logits


def _step(
    parts: Sequence[Part],
    token_ids: torch.Tensor,
    slots: torch.Tensor,
    rows: torch.Tensor,
    extent: int,
) -> attention.Step:
    """Where the tokens at `slots` of the cache, `[tokens]`, stand in their contexts."""
    keys = torch.arange(extent, device=slots.device)
    visible = keys <= slots[:, None]
    positions, key_positions = slots, keys.expand(len(slots), extent)
    ends = itertools.accumulate(len(part.token_ids) for part in parts)
    places = [slice(end - len(part.token_ids), end) for part, end in zip(parts, ends, strict=True)]
    if any(part.parents for part in parts):
        positions, key_positions = positions.clone(), key_positions.clone()
        for part, tokens in zip(parts, places, strict=True):
            if part.parents:
                num_nodes = len(part.token_ids) - part.num_before
                padding = range(len(part.parents) - 1, num_nodes - 1)
                ancestors = _ancestors([*part.parents, *padding]).to(slots.device)
                start, first = part.start + part.num_before, tokens.start + part.num_before
                inside, nodes = (slice(at, at + num_nodes) for at in (start, first))
                visible[nodes, inside] = ancestors
                positions[nodes] = start + ancestors.sum(-1) - 1
                key_positions[nodes, inside] = positions[nodes]
    by_row = [(part.row, tokens) for part, tokens in zip(parts, places, strict=True)]
    return attention.Step(
        token_ids, visible[None, None], positions[None], key_positions[None], rows, slots, by_row
    )


def _ancestors(parents: Sequence[int]) -> torch.Tensor:
    """Which nodes each attends to: itself, its parent, and so on; bool `[nodes, nodes]`."""
    visible = numpy.eye(len(parents), dtype=bool)
    for index, parent in enumerate(parents):
        if parent >= 0:
            visible[index] |= visible[parent]
    return torch.from_numpy(visible)
