"""The engine's attention: one read of keys and values, whatever the number of query heads per key.

Registered with transformers' attention interface under `NAME`, and with its mask interface, so that
sliding windows and the like are those that the model asks for. Grouped query heads are folded into
the query axis, so that keys are not copied once per query head, as the stock masked path does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

from copyspec_eval.errors import ModelError

NAME = "copyspec"

_HARMLESS = {"position_ids", "cache_position"}
"""Tensors that layers pass on and no attention reads."""

_QUERY_ROWS = 8
"""On a CPU, query rows are padded to a multiple of this: other kernels, whose sums have another
order, compute a few rows, or the row that is left over when blocks of 32 are full."""


@dataclass(frozen=True, slots=True)
class Step:
    """What the tokens of one forward follow in their rows' contexts.

    Attributes:
        visible: bool `[rows, 1, width, extent]`, True for the keys of each token's context, which
            ends with the token itself.
        positions: `[rows, width]`, int64, of the tokens in their contexts.
        key_positions: `[rows or 1, extent]`, int64, of the keys; anything where none is visible.
    """

    visible: torch.Tensor
    positions: torch.Tensor
    key_positions: torch.Tensor


_current: ContextVar[Step] = ContextVar("copyspec_step")


@contextmanager
def masked_as(step: Step) -> Iterator[None]:
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
        bool `[rows, 1, width, extent]`.
    """
    step = _current.get()
    visible = step.visible.to(device)
    if mask_function is causal_mask_function:
        return visible
    rows = torch.arange(visible.shape[0], device=device)[:, None, None, None]
    queries = step.positions.to(device)[:, None, :, None]
    keys = step.key_positions.to(device)[:, None, None, :]
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
    rows, heads, width, dim = query.shape
    kv_heads = key.shape[1]
    groups = heads // kv_heads
    # The query heads that share a key are stacked, as if they were more positions.
    folded = query.reshape(rows, kv_heads, groups * width, dim)
    mask = _folded_mask(attention_mask, folded.dtype, kv_heads, groups)
    padding = mask.shape[2] - groups * width
    folded = F.pad(folded, (0, 0, 0, padding)) if padding else folded
    if softcap is None and s_aux is None:
        output = F.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    else:
        sinks = None
        if s_aux is not None:
            sinks = s_aux.reshape(1, kv_heads, groups, 1).expand(rows, -1, -1, width)
            sinks = sinks.reshape(rows, kv_heads, groups * width, 1)
            sinks = F.pad(sinks, (0, 0, 0, padding))
        scale = dim**-0.5 if scaling is None else scaling
        output = _explicit(folded, key, value, mask, scale, softcap, sinks)
    output = output[:, :, : groups * width]
    return output.reshape(rows, heads, width, -1).transpose(1, 2).contiguous(), None


def _check_known(kwargs: dict[str, Any]) -> None:
    for name, value in kwargs.items():
        if isinstance(value, torch.Tensor) and name not in _HARMLESS:
            raise ModelError(
                f"attention with {name!r} is not served; use --model hf for this model"
            )


def _folded_mask(
    mask: torch.Tensor, dtype: torch.dtype, kv_heads: int, groups: int
) -> torch.Tensor:
    """The mask of the folded and padded query, to add to its scores, made once for all layers.

    It is cached on the mask, which the model passes to every layer.
    """
    cached: dict[Any, torch.Tensor] = vars(mask).setdefault("copyspec_folded", {})
    if (groups, dtype) not in cached:
        added = mask
        if mask.dtype == torch.bool:
            added = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
            added.masked_fill_(~mask, -torch.inf)
        rows, heads, width, extent = mask.shape
        if heads == 1:
            added = added.repeat(1, 1, groups, 1)
        else:
            added = added.reshape(rows, kv_heads, groups * width, extent)
        if mask.device.type == "cpu":
            added = F.pad(added, (0, 0, 0, -added.shape[2] % _QUERY_ROWS))
        cached[groups, dtype] = added
    return cached[groups, dtype]


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
