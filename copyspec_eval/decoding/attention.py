"""The engine's attention: one read of keys and values, whatever the number of query heads per key.

Registered with transformers' attention interface under `NAME`. Grouped query heads are folded into
the query axis, so that keys are not copied once per query head, as the stock masked path does.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

NAME = "copyspec"


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of new tokens over the cache, as transformers' attention interface asks for it.

    Args:
        module: the calling layer, unused.
        query: `[rows, heads, width, dim]`.
        key, value: `[rows, kv_heads, S, dim]`.
        attention_mask: bool `[rows, 1, width, S]`, True for the keys of the context up to the
            query's own token, which is the last of them. None for a plain causal prefill, where
            width equals S.
        scaling: factor of the scores; 1/sqrt(dim) if None.
        dropout: ignored, the engine never trains.
        sliding_window: keys further back than this are not seen, in tokens.
        softcap: scores become `softcap * tanh(scores / softcap)` (Gemma 2).
        s_aux: `[heads]`, a score per head that joins the softmax and has no value (gpt-oss).

    Returns:
        `[rows, width, heads, dim]` in the query's dtype, and no weights.
    """
    rows, heads, width, dim = query.shape
    kv_heads, extent = key.shape[1:3]
    groups = heads // kv_heads
    # The query heads that share a key are stacked, as if they were more positions.
    folded = query.reshape(rows, kv_heads, groups * width, dim)
    visible = _step_mask(attention_mask, folded, extent, sliding_window, groups)
    if softcap is None and s_aux is None:
        output = F.scaled_dot_product_attention(
            folded, key, value, attn_mask=visible, scale=scaling
        )
    else:
        sinks = None
        if s_aux is not None:
            sinks = s_aux.reshape(1, kv_heads, groups, 1).expand(rows, -1, -1, width)
            sinks = sinks.reshape(rows, kv_heads, groups * width, 1)
        scale = dim**-0.5 if scaling is None else scaling
        output = _explicit(folded, key, value, visible, scale, softcap, sinks)
    return output.reshape(rows, heads, width, -1).transpose(1, 2), None


def _step_mask(
    mask: torch.Tensor | None,
    folded: torch.Tensor,
    extent: int,
    sliding_window: int | None,
    groups: int,
) -> torch.Tensor:
    """The mask of the folded query, 0 and -inf in its dtype, made once for all layers of a step.

    It is cached on the bool mask, which the model passes to every layer.
    """
    if mask is None:
        keys = torch.arange(extent, device=folded.device)
        assert folded.shape[2] == groups * extent, "only a prefill from 0 comes without a mask"
        mask = (keys <= keys[:, None])[None, None]
    cached: dict[Any, torch.Tensor] = vars(mask).setdefault("copyspec_step_masks", {})
    key = sliding_window, groups, folded.dtype
    if key not in cached:
        seen = _visible(mask, sliding_window).repeat(1, 1, groups, 1)
        cached[key] = torch.zeros(seen.shape, dtype=folded.dtype, device=seen.device)
        cached[key].masked_fill_(~seen, -torch.inf)
    return cached[key]


def _visible(mask: torch.Tensor, sliding_window: int | None) -> torch.Tensor:
    if sliding_window is not None:
        # By position in the context: in a tree, what lies between belongs to other branches.
        positions = mask.cumsum(-1, dtype=torch.int32)
        mask = mask & (positions > positions[..., -1:] - sliding_window)
    return mask


def _explicit(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """What the fused kernel lacks: capped scores, and sinks `[rows, kv_heads, queries, 1]`."""
    scores = query @ key.transpose(-1, -2) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores + visible
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype)], dim=-1)
    working_dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
    weights = torch.softmax(scores, dim=-1, dtype=working_dtype).to(value.dtype)
    return weights[..., : key.shape[2]] @ value


AttentionInterface.register(NAME, attend)
