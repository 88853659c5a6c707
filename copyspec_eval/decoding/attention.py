"""The engine's attention: one read of keys and values, whatever the number of query heads per key.

Registered with transformers' attention interface under `NAME`, and with its mask interface, so that
sliding windows and the like are those that the model asks for. On a CPU it is our own kernel. With
torch's, grouped query heads are folded into the query axis, so that keys are not copied once per
query head, as the stock masked path does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
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
"""On a CPU, torch's query rows are padded to a multiple of this: other kernels, whose sums have
another order, compute a few rows, or the row that is left over when blocks of 32 are full."""


@dataclass(frozen=True, slots=True)
class Step:
    """What equally many tokens of some rows follow in their contexts.

    Attributes:
        visible: bool `[rows, 1, width, extent]`, True for the keys of each token's context, which
            ends with the token itself.
        positions: `[rows, width]`, int64, of the tokens in their contexts.
        key_positions: `[rows or 1, extent]`, int64, of the keys; anything where none is visible.
        folded: masks as torch's kernel takes them, made once for all layers; by the mask's id, with
            the mask itself, so that the id stays its own.
    """

    visible: torch.Tensor
    positions: torch.Tensor
    key_positions: torch.Tensor
    folded: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)


class RowTokens(NamedTuple):
    """Where a row of the cache has its tokens in a packed step."""

    row: int
    tokens: slice


@dataclass(frozen=True, slots=True)
class Packed:
    """What the tokens of one forward follow, whose rows have unlike numbers of tokens.

    They stand in a single row, one row's after the other's.

    Attributes:
        visible: bool `[1, 1, tokens, extent]`, as of `Step`.
        positions: `[1, tokens]`, int64.
        key_positions: `[1, tokens, extent]`, int64, of the keys of each token's row.
        rows: `[tokens]`, int64, of the cache.
        parts: the same by row; together they are all tokens.
    """

    visible: torch.Tensor
    positions: torch.Tensor
    key_positions: torch.Tensor
    rows: torch.Tensor
    parts: tuple[RowTokens, ...]


_current: ContextVar[Step | Packed] = ContextVar("copyspec_step")


@contextmanager
def masked_as(step: Step | Packed) -> Iterator[None]:
    """Within it, models get their masks for `step`."""
    token = _current.set(step)
    try:
        yield
    finally:
        _current.reset(token)


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
        return visible
    rows = torch.arange(visible.shape[0], device=device)[:, None, None, None]
    queries = current.positions.to(device)[:, None, :, None]
    keys = current.key_positions.to(device)
    keys = keys[:, None] if isinstance(current, Packed) else keys[:, None, None]
    restricted: torch.Tensor = mask_function(rows, torch.zeros_like(rows), queries, keys)
    return visible & restricted


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
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if kernels.attends(query, key, value, attention_mask):
        key_rows = current.rows if isinstance(current, Packed) else None
        ours = kernels.attend(
            query,
            key,
            value,
            attention_mask,
            scale,
            key_rows=key_rows,
            softcap=softcap,
            sinks=s_aux,
        )
        return ours, None
    if not isinstance(current, Packed):
        mask = _folded_mask(current, attention_mask, query, key)
        return _attend(query, key, value, mask, scale, softcap, s_aux), None
    outputs = []
    # A mask that layers make of the values (Doge) has the rows of the keys.
    by_row = len(attention_mask) > 1
    for row, tokens in current.parts:
        some, keys = query[:, :, tokens], slice(row, row + 1)
        of_row = attention_mask[keys] if by_row else attention_mask
        mask = _fold(of_row[:, :, tokens], some, key)
        outputs.append(_attend(some, key[keys], value[keys], mask, scale, softcap, s_aux))
    return torch.cat(outputs, dim=1), None


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    softcap: float | None,
    s_aux: torch.Tensor | None,
) -> torch.Tensor:
    """By torch: attention of rows of equally many tokens; `[rows, width, heads, dim]`.

    Args:
        query, key, value, softcap, s_aux: as of `attend`.
        mask: of `_fold`.
        scale: factor of the scores.
    """
    rows, heads, width, dim = query.shape
    kv_heads = key.shape[1]
    groups = heads // kv_heads
    # The query heads that share a key are stacked, as if they were more positions.
    folded = query.contiguous().view(rows, kv_heads, groups * width, dim)
    padding = mask.shape[2] - groups * width
    folded = F.pad(folded, (0, 0, 0, padding))
    if softcap is None and s_aux is None:
        output = F.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scale)
    else:
        sinks = None
        if s_aux is not None:
            sinks = s_aux.reshape(1, kv_heads, groups, 1).expand(rows, -1, -1, width)
            sinks = sinks.reshape(rows, kv_heads, groups * width, 1)
            sinks = F.pad(sinks, (0, 0, 0, padding))
        output = _explicit(folded, key, value, mask, scale, softcap, sinks)
    output = output[:, :, : groups * width]
    return output.reshape(rows, heads, width, -1).transpose(1, 2).contiguous()


def _check_known(kwargs: dict[str, Any]) -> None:
    for name, value in kwargs.items():
        if isinstance(value, torch.Tensor) and name not in _HARMLESS:
            raise ModelError(
                f"attention with {name!r} is not served; use --model hf for this model"
            )


def _folded_mask(
    step: Step | None, mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    """As `_fold`, made once for all layers of a step."""
    if step is None:
        return _fold(mask, query, key)
    if id(mask) not in step.folded:
        step.folded[id(mask)] = mask, _fold(mask, query, key)
    return step.folded[id(mask)][1]


def _fold(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The mask of the folded and padded query, to add to its scores."""
    added = mask
    if mask.dtype == torch.bool:
        added = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device)
        added.masked_fill_(~mask, -torch.inf)
    rows, heads, width, extent = mask.shape
    kv_heads = key.shape[1]
    groups = query.shape[1] // kv_heads
    if heads == 1:
        added = added.repeat(1, 1, groups, 1)
    else:
        added = added.reshape(rows, kv_heads, groups * width, extent)
    if mask.device.type == "cpu":
        added = F.pad(added, (0, 0, 0, -added.shape[2] % _QUERY_ROWS))
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
