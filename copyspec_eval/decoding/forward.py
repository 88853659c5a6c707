"""One forward of the model: tokens of one row or several, chains or trees, against the cache."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from copyspec_eval.decoding import attention
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.serving import input_device
from copyspec_eval.types import Draft


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
        model: a model within `served`.
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
    model: PreTrainedModel,
    cache: RowCache,
    parts: Sequence[Part],
    widths: Sequence[int],
    num_tokens: int,
    extent: int,
) -> torch.Tensor:
    """One target forward of unlike numbers of tokens per row, none of them padded.

    The tokens stand in one row, so that a linear layer sees no more of them than there are. The
    attention takes all rows up to the last one as if they had `widths[0]` tokens, and those that
    have more once again, as if they had `widths[1]`.

    Args:
        model, cache, extent: as for `forward`.
        parts: the rows' tokens, one row after the other.
        widths: one or two, ascending; no part is longer than the last.
        num_tokens: of the forward, at least those of all parts; what is left over is padding.

    Returns:
        logits `[num_tokens, vocabulary]`, part after part.
    """
    lengths = [len(part.token_ids) for part in parts]
    # Two at least, as of their tokens, so that a compiled layer is one graph for all numbers.
    num_rows = max(2, 1 + max(part.row for part in parts))
    layout = _layout(parts, lengths, widths, num_rows, num_tokens)
    # One copy to the device.
    numbers = torch.tensor(layout.numbers).to(input_device(model))
    split = iter(torch.split(numbers, layout.sizes))
    ids, rows, slots, order = (next(split) for _ in range(4))
    groups = [attention.Group(None, next(split).reshape(num_rows, -1))]
    if layout.wide:
        groups.append(attention.Group(next(split), next(split).reshape(len(layout.wide), -1)))
    step = _packed_step(parts, rows, slots, extent, num_tokens, tuple(groups), order)
    cache.place_packed(rows, slots, extent)
    return _run(model, cache, ids[None], step, step.positions)[0]


class _Layout(NamedTuple):
    """Numbers for the device, one after the other, how many there are of each, and the wide parts.

    They are the tokens, the rows and the slots of all parts' tokens, the order of `Packed`, the
    tokens of the first group, and of the second its rows and tokens.
    """

    numbers: list[int]
    sizes: list[int]
    wide: list[int]


def _layout(
    parts: Sequence[Part],
    lengths: Sequence[int],
    widths: Sequence[int],
    num_rows: int,
    num_tokens: int,
) -> _Layout:
    begins = [0, *itertools.accumulate(lengths)]
    padding = [0] * (num_tokens - begins[-1])
    ids = [token for part in parts for token in part.token_ids] + padding
    rows = [part.row for part, length in zip(parts, lengths, strict=True) for _ in range(length)]
    slots = [
        part.start + index
        for part, length in zip(parts, lengths, strict=True)
        for index in range(length)
    ]
    shared, widest = max(2, widths[0]), widths[-1]
    tokens = [0] * (num_rows * shared)
    order: list[int] = []
    wide = [number for number, length in enumerate(lengths) if length > shared]
    wide_tokens: list[int] = []
    for number, (part, begin, length) in enumerate(zip(parts, begins, lengths, strict=False)):
        own = range(begin, begin + length)
        at = part.row * shared
        tokens[at : at + shared] = _stretched(own, shared)
        if number in wide:
            at = len(tokens) + len(wide_tokens)
            wide_tokens += _stretched(own, widest)
        order += range(at, at + length)
    numbers = [ids, rows, slots, order + padding, tokens]
    if wide:
        numbers += [[parts[number].row for number in wide], wide_tokens]
    return _Layout([n for some in numbers for n in some], [len(some) for some in numbers], wide)


def _stretched(own: Sequence[int], width: int) -> list[int]:
    """The first `width` of them, the last one repeated if there are fewer."""
    return [*own[:width], *([own[-1]] * (width - len(own)))]


def _packed_step(
    parts: Sequence[Part],
    rows: torch.Tensor,
    slots: torch.Tensor,
    extent: int,
    num_tokens: int,
    groups: tuple[attention.Group, ...],
    order: torch.Tensor,
) -> attention.Packed:
    # Padding sees the first key of the first row.
    more = num_tokens - len(slots)
    keys = torch.arange(extent, device=slots.device)
    visible = keys <= F.pad(slots, (0, more))[:, None]
    positions, key_positions = slots, keys.expand(len(slots), extent)
    if any(part.parents for part in parts):
        positions, key_positions = positions.clone(), key_positions.clone()
        end = 0
        for part in parts:
            begin, end = end, end + len(part.token_ids)
            if part.parents:
                tree = _step(slots[None, begin:end], extent, [part.parents])
                visible[begin:end] = tree.visible[0, 0]
                positions[begin:end] = tree.positions[0]
                key_positions[begin:end] = tree.key_positions
    return attention.Packed(
        visible[None, None],
        F.pad(positions, (0, more))[None],
        F.pad(key_positions, (0, 0, 0, more))[None],
        F.pad(rows, (0, more)),
        groups,
        order,
    )


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
