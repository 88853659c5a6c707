"""The engine's attention: one read of keys and values, whatever the number of query heads per key.

Registered with transformers' attention interface under `NAME`, and with its mask interface, so that
sliding windows and the like are those that the model asks for. On a CPU it is our own kernel. With
torch's, grouped query heads are folded into the query axis, so that keys are not copied once per
query head, as the stock masked path does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

from copyspec_eval.decoding import kernels
from copyspec_eval.errors import ModelError

NAME = "copyspec"

_HARMLESS = {"position_ids", "cache_position"}
"""Tensors that layers pass on and no attention reads."""

_QUERY_ROWS = 8
"""On a CPU, query rows are padded to a multiple of this: other kernels, whose sums have another
order, compute a few rows, or the row that is left over when blocks of 32 are full. There is always
some padding, so that a compiled layer is one graph for all widths."""


@dataclass(frozen=True, slots=True)
class Step:
    """What equally many tokens of some rows follow in their contexts.

    Attributes:
        visible: bool `[rows, 1, width, extent]`, True for the keys of each token's context, which
            ends with the token itself.
        positions: `[rows, width]`, int64, of the tokens in their contexts.
        key_positions: `[rows or 1, extent]`, int64, of the keys; anything where none is visible.
    """

    visible: torch.Tensor
    positions: torch.Tensor
    key_positions: torch.Tensor

    def index_tensors(self, folds: bool) -> list[torch.Tensor]:
        """What the attention reads beside the mask: nothing."""
        return []

    def with_index_tensors(self, tensors: Sequence[torch.Tensor]) -> Step:
        """The same step."""
        return self


@dataclass(frozen=True, slots=True)
class Group:
    """Rows whose tokens the attention takes together, as if they were equally many.

    Attributes:
        rows: of the cache, `[rows]` int64; None for the first ones.
        tokens: `[rows, width]`, int64, where each row's tokens stand in the forward; what is behind
            a row's own is any token.
    """

    rows: torch.Tensor | None
    tokens: torch.Tensor


@dataclass(frozen=True, slots=True)
class Packed:
    """What the tokens of one forward follow, whose rows have unlike numbers of tokens.

    They stand in a single row, one row's after the other's.

    Attributes:
        visible: bool `[1, 1, tokens, extent]`, as of `Step`.
        positions: `[1, tokens]`, int64.
        key_positions: `[1, tokens, extent]`, int64, of the keys of each token's row.
        rows: `[tokens]`, int64, of the cache.
        groups: what the attention takes at a time; all tokens are in one, but for padding.
        order: `[tokens]`, int64, where each token is among those of all groups, of the last group
            that has it; anything for padding.
    """

    visible: torch.Tensor
    positions: torch.Tensor
    key_positions: torch.Tensor
    rows: torch.Tensor
    groups: tuple[Group, ...]
    order: torch.Tensor

    def index_tensors(self, folds: bool) -> list[torch.Tensor]:
        """What the attention reads beside the mask.

        Args:
            folds: whether it takes torch's kernel: then it is `order`, and tokens and rows of each
                group; else `rows`.
        """
        if not folds:
            return [self.rows]
        of_groups = [index for group in self.groups for index in (group.tokens, group.rows)]
        return [self.order, *(index for index in of_groups if index is not None)]

    def with_index_tensors(self, tensors: Sequence[torch.Tensor]) -> Packed:
        """The step with others in their place."""
        first, *of_groups = tensors
        if not of_groups:
            return replace(self, rows=first)
        indices = iter(of_groups)
        groups = []
        for group in self.groups:
            tokens = next(indices)
            groups.append(Group(None if group.rows is None else next(indices), tokens))
        return replace(self, groups=tuple(groups), order=first)


_current: ContextVar[Step | Packed] = ContextVar("copyspec_step")


@contextmanager
def masked_as(step: Step | Packed) -> Iterator[None]:
    """Within it, models get their masks for `step`."""
    token = _current.set(step)
    try:
        yield
    finally:
        _current.reset(token)


def current_step() -> Step | Packed:
    """The step that masks are made for now."""
    return _current.get()


def is_mask(tensor: torch.Tensor) -> bool:
    """Whether it is of `make_mask`."""
    return "copyspec_folded" in vars(tensor)


def make_mask(
    *, mask_function: Callable[..., Any], device: torch.device, **kwargs: Any
) -> torch.Tensor:
    """The mask of the current step, as transformers' mask interface asks for it.

    Args:
        mask_function: which positions attend to which, of row, head, query and key; what a model
            restricts (a sliding window, say) is in it.
        device: where to put the mask.

    Returns:
        bool `[rows, 1, width, extent]`; of a packed step `[1, 1, tokens, extent]`.
    """
    current = _current.get()
    visible = current.visible.to(device)
    if mask_function is causal_mask_function:
        return _marked(visible)
    rows = torch.arange(visible.shape[0], device=device)[:, None, None, None]
    queries = current.positions.to(device)[:, None, :, None]
    keys = current.key_positions.to(device)
    keys = keys[:, None] if isinstance(current, Packed) else keys[:, None, None]
    restricted: torch.Tensor = mask_function(rows, torch.zeros_like(rows), queries, keys)
    return _marked(visible & restricted)


def _marked(mask: torch.Tensor) -> torch.Tensor:
    folded_masks(mask)
    return mask


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of new tokens over the cache, as transformers' attention interface asks for it.

    Args:
        module: the calling layer, unused.
        query: `[rows, heads, width, dim]`.
        key, value: `[rows, kv_heads, S, dim]`.
        attention_mask: of `make_mask`, or what the model made of it: bool, or floats that are
            added to the scores; `[rows, 1 or heads, width, S]`.
        scaling: factor of the scores; 1/sqrt(dim) if None.
        dropout: ignored, the engine never trains.
        softcap: scores become `softcap * tanh(scores / softcap)` (Gemma 2).
        s_aux: `[heads]`, a score per head that joins the softmax and has no value (gpt-oss).
        kwargs: settings of other kernels, and what the mask already has in it (`sliding_window`).

    Returns:
        `[rows, width, heads, dim]` in the query's dtype, contiguous, and no weights.

    Raises:
        ModelError: there is a tensor that would change the scores.
    """
    _check_known(kwargs)
    current = _current.get(None)
    if softcap is None and s_aux is None and kernels.attends(query, key, value, attention_mask):
        key_rows = current.rows if isinstance(current, Packed) else None
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        ours = torch.ops.copyspec.attend(query, key, value, attention_mask, key_rows, scale)
        return ours, None
    if not isinstance(current, Packed):
        output = _attend(query, key, value, attention_mask, 0, scaling, softcap, s_aux)
        return output.contiguous(), None
    outputs = []
    for number, group in enumerate(current.groups):
        rows = slice(group.tokens.shape[0]) if group.rows is None else group.rows.to(query.device)
        part = query[0, :, group.tokens.to(query.device)].transpose(0, 1)
        output = _attend(
            part, key[rows], value[rows], attention_mask, number, scaling, softcap, s_aux
        )
        outputs.append(output.flatten(0, 1))
    return torch.cat(outputs)[current.order.to(query.device)][None], None


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    number: int,
    scaling: float | None,
    softcap: float | None,
    s_aux: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of rows of equally many tokens; `[rows, width, heads, dim]`."""
    rows, heads, width, dim = query.shape
    kv_heads = key.shape[1]
    groups = heads // kv_heads
    # The query heads that share a key are stacked, as if they were more positions.
    # A view would be fixed where a compiled layer is traced, and may be none where it is compiled.
    contiguous = query.clone(memory_format=torch.contiguous_format)
    folded = contiguous.view(rows, kv_heads, groups * width, dim)
    added = _folded_mask(mask, FoldedMask(number, kv_heads, groups, folded.dtype))
    padding = added.shape[2] - groups * width
    if query.device.type == "cpu":
        folded = F.pad(folded, (0, 0, 0, padding))
    if softcap is None and s_aux is None:
        output = F.scaled_dot_product_attention(folded, key, value, attn_mask=added, scale=scaling)
    else:
        sinks = None
        if s_aux is not None:
            sinks = s_aux.reshape(1, kv_heads, groups, 1).expand(rows, -1, -1, width)
            sinks = sinks.reshape(rows, kv_heads, groups * width, 1)
            sinks = F.pad(sinks, (0, 0, 0, padding))
        scale = dim**-0.5 if scaling is None else scaling
        output = _explicit(folded, key, value, added, scale, softcap, sinks)
    output = output[:, :, : groups * width]
    return output.reshape(rows, heads, width, -1).transpose(1, 2)


def _check_known(kwargs: dict[str, Any]) -> None:
    for name, value in kwargs.items():
        if isinstance(value, torch.Tensor) and name not in _HARMLESS:
            raise ModelError(
                f"attention with {name!r} is not served; use --model hf for this model"
            )


class FoldedMask(NamedTuple):
    """Which part of a mask, and how it is folded.

    Attributes:
        number: of the group in a packed step, else 0.
        kv_heads, groups: heads of the keys, and query heads for each.
        dtype: of the query.
    """

    number: int
    kv_heads: int
    groups: int
    dtype: torch.dtype


def folded_masks(mask: torch.Tensor) -> dict[FoldedMask, torch.Tensor]:
    """Kept on the mask itself, which a model passes to all layers: each is made once."""
    masks: dict[FoldedMask, torch.Tensor] = vars(mask).setdefault("copyspec_folded", {})
    return masks


def _folded_mask(mask: torch.Tensor, folded: FoldedMask) -> torch.Tensor:
    """The mask of the folded and padded query, to add to its scores."""
    masks = folded_masks(mask)
    if folded not in masks:
        current = _current.get(None)
        if isinstance(current, Packed):
            tokens = current.groups[folded.number].tokens.to(mask.device)
            mask = mask[0, :, tokens].transpose(0, 1)
        masks[folded] = _fold(mask, folded)
    return masks[folded]


def _fold(mask: torch.Tensor, folded: FoldedMask) -> torch.Tensor:
    added = mask
    if mask.dtype == torch.bool:
        added = torch.zeros(mask.shape, dtype=folded.dtype, device=mask.device)
        added.masked_fill_(~mask, -torch.inf)
    rows, heads, width, extent = mask.shape
    if heads == 1:
        added = added.repeat(1, 1, folded.groups, 1)
    else:
        added = added.reshape(rows, folded.kv_heads, folded.groups * width, extent)
    if mask.device.type == "cpu":
        added = F.pad(added, (0, 0, 0, _QUERY_ROWS - added.shape[2] % _QUERY_ROWS))
    return added


def _explicit(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """What the fused kernel lacks: capped scores, and sinks `[rows, kv_heads, queries, 1]`."""
    scores = query @ key.transpose(-1, -2) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype)], dim=-1)
    working_dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
    weights = torch.softmax(scores, dim=-1, dtype=working_dtype).to(value.dtype)
    return weights[..., : key.shape[2]] @ value


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, make_mask)
