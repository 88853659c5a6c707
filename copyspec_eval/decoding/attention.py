"""The engine's attention, registered with transformers under `NAME` for attention and masks.

On a CPU it is our own kernel. With torch's, query heads that share a key are folded into the query
axis, so that keys are not copied for every query head, as the stock masked path does.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

from copyspec_eval.decoding import kernels
from copyspec_eval.errors import ModelError

NAME = "copyspec"

_HARMLESS = {"position_ids", "cache_position"}
"""Tensors that layers pass along but no attention reads."""

# Neighbouring rows of the cache, their tokens, and the mask of their folded queries.
MaskedBlock = tuple[slice, slice, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Step:
    """The tokens of a forward, in one row of the model's input, and what each attends to.

    Attributes:
        token_ids: `[tokens]`, int64.
        visible: bool `[1, 1, tokens, extent]`, True for the keys of a token's context and its own.
        positions, key_positions: `[1, tokens]` and `[1, tokens, extent]`, int64, in the context.
        rows, slots: each token's place in the cache, `[tokens]`, int64 each.
        parts: each row with its tokens.
        masked_blocks: torch's masks, made once for all layers: of a mask, for so many heads of
            queries and keys.
    """

    token_ids: torch.Tensor
    visible: torch.Tensor
    positions: torch.Tensor
    key_positions: torch.Tensor
    rows: torch.Tensor
    slots: torch.Tensor
    parts: Sequence[tuple[int, slice]]
    masked_blocks: list[tuple[torch.Tensor, tuple[int, int], list[MaskedBlock]]] = field(
        default_factory=list
    )

    def blocks(self, num_tokens: int) -> list[tuple[slice, slice]]:
        """Cache rows with their last `num_tokens`, as torch takes them: all at once, or one by one.

        Gemma 4 drops the tokens without logits in its last layers.
        """
        before = self.rows.numel() - num_tokens
        parts = [
            (row, slice(max(0, tokens.start - before), tokens.stop - before))
            for row, tokens in self.parts
            if tokens.stop > before
        ]
        first = parts[0][0]
        rows, lengths = zip(*((row, part.stop - part.start) for row, part in parts), strict=True)
        if len({*lengths}) == 1 and rows == tuple(range(first, first + len(rows))):
            return [(slice(first, first + len(rows)), slice(num_tokens))]
        return [(slice(row, row + 1), tokens) for row, tokens in parts]


_current: ContextVar[Step] = ContextVar("the step, within `masked_as`")


@contextmanager
def masked_as(step: Step) -> Iterator[None]:
    """Within this context, models get their masks for `step`."""
    token = _current.set(step)
    try:
        yield
    finally:
        _current.reset(token)


def row_starts() -> dict[int, int]:
    """Where the tokens of each cache row begin in the current step."""
    return {row: tokens.start for row, tokens in _current.get().parts}


def make_mask(
    *, mask_function: Callable[..., Any], device: torch.device, **kwargs: Any
) -> torch.Tensor:
    """The current step's mask, bool `[1, 1, tokens, extent]`, as transformers' mask interface.

    `mask_function` carries the model's own restrictions, e.g. a sliding window.
    """
    current = _current.get()
    visible = current.visible.to(device)
    if mask_function is causal_mask_function:
        return visible
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=device)
    queries = current.positions.to(device)[:, None, :, None]
    keys = current.key_positions.to(device)[:, None]
    restricted: torch.Tensor = mask_function(zero, zero, queries, keys)
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
    """Attention of new tokens over the cache, as transformers' attention interface.

    Args:
        query: `[1, heads, tokens, dim]`.
        key, value: `[rows of the cache, kv_heads, S, dim]`.
        attention_mask: from `make_mask`, or what the model made of it: bool, or floats added to the
            scores; `[1 or rows of the cache, 1 or heads, tokens, S]`.
        scaling: factor of the scores; 1/sqrt(dim) if None.
        softcap: scores become `softcap * tanh(scores / softcap)` (Gemma 2).
        s_aux: `[heads]`, a score per head that joins the softmax and has no value (gpt-oss).

    Returns:
        `[1, tokens, heads, dim]` in the query's dtype, contiguous, and no weights.

    Raises:
        ModelError: the model passes another tensor, which would change the scores.
    """
    for name, passed in kwargs.items():
        if isinstance(passed, torch.Tensor) and name not in _HARMLESS:
            raise ModelError(
                f"attention with {name!r} is not supported; use --model hf for this model"
            )
    step = _current.get()
    _, heads, num_tokens, dim = query.shape
    scale = dim**-0.5 if scaling is None else scaling
    if kernels.attends(query, key, value, attention_mask):
        key_rows = step.rows[-num_tokens:]
        return kernels.attend(
            query, key, value, attention_mask, scale, key_rows, softcap=softcap, sinks=s_aux
        ), None
    outputs = []
    for rows, tokens, mask in _masked_blocks(step, attention_mask, num_tokens, heads, key):
        queries = query[0, :, tokens].reshape(heads, rows.stop - rows.start, -1, dim)
        # The query heads that share a key are stacked, as if they were more positions.
        folded = queries.transpose(0, 1).contiguous().view(len(key[rows]), key.shape[1], -1, dim)
        if softcap is None and s_aux is None:
            output = F.scaled_dot_product_attention(
                folded, key[rows], value[rows], attn_mask=mask, scale=scale
            )
        else:
            output = _explicit(folded, key[rows], value[rows], mask, scale, softcap, s_aux)
        by_head = output.reshape(len(output), heads, -1, output.shape[-1])
        outputs.append(by_head.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[None], None


def _masked_blocks(
    step: Step, mask: torch.Tensor, num_tokens: int, heads: int, key: torch.Tensor
) -> list[MaskedBlock]:
    """`Step.blocks` with what each adds to its scores, the same for all layers of a mask."""
    for known, shape, blocks in step.masked_blocks:
        if known is mask and shape == (heads, key.shape[1]):
            return blocks
    blocks = [
        (rows, tokens, _fold(mask, rows, tokens, heads, key))
        for rows, tokens in step.blocks(num_tokens)
    ]
    step.masked_blocks.append((mask, (heads, key.shape[1]), blocks))
    return blocks


def _fold(
    mask: torch.Tensor, rows: slice, tokens: slice, heads: int, key: torch.Tensor
) -> torch.Tensor:
    """The mask of one of `Step.blocks`: what to add to the scores of its folded query."""
    num_rows = rows.stop - rows.start
    # A mask that layers make of the values (Doge) has the rows of the keys.
    mask = mask[rows] if len(mask) > 1 else mask.expand(num_rows, -1, -1, -1)
    _, mask_heads, _, extent = mask.shape
    by_row = mask[:, :, tokens].view(num_rows, mask_heads, num_rows, -1, extent)
    mask = by_row.diagonal(dim1=0, dim2=2).permute(3, 0, 1, 2)
    added = mask
    if mask.dtype == torch.bool:
        added = torch.zeros(mask.shape, dtype=key.dtype, device=mask.device)
        added.masked_fill_(~mask, -torch.inf)
    groups = heads // key.shape[1]
    if mask_heads == 1:
        return added.repeat(1, 1, groups, 1)
    return added.reshape(num_rows, key.shape[1], groups * mask.shape[2], extent)


def _explicit(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """What the fused kernel lacks: capped scores, and sinks, `[heads]`, for folded queries."""
    scores = query @ key.transpose(-1, -2) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores + mask
    if sinks is not None:
        groups = len(sinks) // key.shape[1]
        by_query = sinks.view(1, -1, groups, 1).expand(len(query), -1, -1, query.shape[2] // groups)
        scores = torch.cat([scores, by_query.to(scores.dtype).flatten(2)[..., None]], dim=-1)
    working_dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
    weights = torch.softmax(scores, dim=-1, dtype=working_dtype).to(value.dtype)
    return weights[..., : key.shape[2]] @ value


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, make_mask)
