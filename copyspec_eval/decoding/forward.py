"""One forward of the model: tokens of one row or several, chains or trees, against the cache."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy
import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding import attention
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.model_support import input_device
from copyspec_eval.types import Draft

_KEYS = 64


def key_extent(length: int) -> int:
    """The fewest keys that are attended to where `length` are needed, masked ones included.

    >>> key_extent(1), key_extent(128)
    (64, 128)
    """
    return -(-length // _KEYS) * _KEYS


def forward(
    model: PreTrainedModel,
    cache: RowCache,
    first_row: int,
    input_ids: torch.Tensor,
    start: int | torch.Tensor,
    extent: int,
    logits_to_keep: int = 0,
    parents: Sequence[Sequence[int]] | None = None,
) -> torch.Tensor:
    """One target forward: `[rows, width]` tokens at their rows' positions, against the cache.

    Tokens of a tree are written to the cache in their order, and each attends to its ancestors
    alone, at the position that it has on its own branch.

    Args:
        model: a model within `engine_kernels`.
        cache: where keys and values go; the rows written are `first_row …`.
        first_row: see above.
        input_ids: `[rows, width]`, int64.
        start: position of each row's first token, `[rows, 1]` int64, or one int for all.
        extent: how many positions of the cache are attended to, masked to each token's past.
        logits_to_keep: of how many last tokens to compute logits; 0 for all.
        parents: for trees, of each row and token the index in the step of the token before it, -1
            for the first; None if every token follows the one before.

    Returns:
        logits `[rows, width or logits_to_keep, vocabulary]`.
    """
    rows, width = input_ids.shape
    slots = (start + torch.arange(width, device=input_ids.device)).expand(rows, width)
    step = _step(slots, extent, parents)
    cache.place(first_row, slots, extent)
    return _run(model, cache, input_ids, step, step.positions, logits_to_keep)


class Part(NamedTuple):
    """A row's tokens in a packed step.

    Attributes:
        row: of the cache.
        start: position of the first.
        token_ids: see above.
        parents: of a tree, as for `forward`; None for a chain.
    """

    row: int
    start: int
    token_ids: Sequence[int]
    parents: Sequence[int] | None = None


def forward_packed(
    model: PreTrainedModel, cache: RowCache, parts: Sequence[Part], extent: int
) -> torch.Tensor:
    """One target forward of unlike numbers of tokens per row, none of them padded.

    The tokens stand in one row, so that a linear layer sees no more of them than there are.

    Args:
        model, cache, extent: as for `forward`.
        parts: the rows' tokens, one row after the other.

    Returns:
        logits `[tokens, vocabulary]`, part after part.
    """
    ends = [*itertools.accumulate(len(part.token_ids) for part in parts)]
    ids = [token for part in parts for token in part.token_ids]
    slots = [part.start + index for part in parts for index in range(len(part.token_ids))]
    rows = [part.row for part in parts for _ in part.token_ids]
    # One copy to the device.
    tokens, all_slots, all_rows = torch.tensor([ids, slots, rows]).to(input_device(model)).unbind()
    places = tuple(
        attention.RowTokens(part.row, slice(end - len(part.token_ids), end))
        for part, end in zip(parts, ends, strict=True)
    )
    step = _packed_step(parts, all_rows, all_slots, extent, places)
    cache.place_packed(all_rows, all_slots, extent)
    return _run(model, cache, tokens[None], step, step.positions)[0]


def _packed_step(
    parts: Sequence[Part],
    rows: torch.Tensor,
    slots: torch.Tensor,
    extent: int,
    places: tuple[attention.RowTokens, ...],
) -> attention.Packed:
    keys = torch.arange(extent, device=slots.device)
    visible = keys <= slots[:, None]
    positions, key_positions = slots, keys.expand(len(slots), extent)
    if any(part.parents for part in parts):
        positions, key_positions = positions.clone(), key_positions.clone()
        for part, (_, tokens) in zip(parts, places, strict=True):
            if part.parents:
                tree = _step(slots[None, tokens], extent, [part.parents])
                visible[tokens] = tree.visible[0, 0]
                positions[tokens] = tree.positions[0]
                key_positions[tokens] = tree.key_positions
    return attention.Packed(visible[None, None], positions[None], key_positions[None], rows, places)


def _run(
    model: PreTrainedModel,
    cache: RowCache,
    input_ids: torch.Tensor,
    step: attention.Step | attention.Packed,
    positions: torch.Tensor,
    logits_to_keep: int = 0,
) -> torch.Tensor:
    with attention.masked_as(step):
        output = model(
            input_ids=input_ids,
            # Padding may lie past the last position a model has an embedding for; nobody reads it.
            position_ids=positions.clamp(0, _last_position(model)),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=logits_to_keep,
        )
    logits: torch.Tensor = output.logits
    return logits


def step_parents(draft: Draft, num_before: int, width: int) -> list[int]:
    """Of each token of a step, the index there of the token before it; -1 for the first.

    Args:
        draft: a chain or a tree.
        num_before: tokens of the context that are fed in front of it.
        width: of the step; padding follows the draft.

    >>> step_parents(Draft((5, 6, 7), parents=(-1, 0, -1)), num_before=2, width=6)
    [-1, 0, 1, 2, 1, 4]
    """
    if draft.parents is None:
        return list(range(-1, width - 1))
    of_draft = [num_before + parent for parent in draft.parents]
    padding = range(num_before + len(of_draft) - 1, width - 1)
    return [*range(-1, num_before - 1), *of_draft, *padding]


def _step(
    slots: torch.Tensor, extent: int, parents: Sequence[Sequence[int]] | None
) -> attention.Step:
    """Where the tokens at `slots` of the cache, `[rows, width]`, stand in their contexts."""
    keys = torch.arange(extent, device=slots.device)
    if parents is None:
        return attention.Step((keys <= slots[:, :, None])[:, None], slots, keys[None])
    rows, width = slots.shape
    ancestors = _ancestors(parents).to(slots.device)
    positions = slots[:, :1] + ancestors.sum(-1) - 1
    visible = (keys < slots[:, :1, None]).expand(rows, width, extent).clone()
    visible.scatter_(2, slots[:, None, :].expand(rows, width, width), ancestors)
    key_positions = keys.expand(rows, extent).clone().scatter_(1, slots, positions)
    return attention.Step(visible[:, None], positions, key_positions)


def _ancestors(parents: Sequence[Sequence[int]]) -> torch.Tensor:
    """Of each row, which tokens each token attends to: itself, its parent, its parent's, and so on.

    Returns:
        `[rows, width, width]`, bool.
    """
    visible = numpy.zeros((len(parents), len(parents[0]), len(parents[0])), dtype=bool)
    for row, row_parents in enumerate(parents):
        for index, parent in enumerate(row_parents):
            if parent >= 0:
                visible[row, index] = visible[row, parent]
            visible[row, index, index] = True
    return torch.from_numpy(visible)


def _last_position(model: PreTrainedModel) -> int | None:
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return None if limit is None else limit - 1
