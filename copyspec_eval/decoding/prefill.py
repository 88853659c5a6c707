"""Reads prompts into the cache, in chunks that do not depend on what was read before."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.forward import Part, forward, step_parents
from copyspec_eval.types import Draft

PREFILL_CHUNK = 256
"""Prompt tokens per forward of a prefill: bounds its mask, and never depends on a draft."""
_REUSED_BLOCK = 16
"""Tokens that are kept together, where chunks may begin anywhere."""


def block_length(is_fixed: bool) -> int:
    """Tokens from one place to the next where a prompt may be read on, if steps have a fixed width.

    Then only whole chunks that a prefill has read are used again.
    """
    return PREFILL_CHUNK if is_fixed else _REUSED_BLOCK


@torch.inference_mode()
def read_prompt(
    model: PreTrainedModel,
    cache: RowCache,
    row: int,
    prompt_ids: Sequence[int],
    draft: Draft,
    start: int,
) -> torch.Tensor:
    """Put a prompt into a row of the cache, and a draft behind it.

    Args:
        model: within `engine_kernels`.
        draft: verified by the prompt's last chunk.
        start: tokens whose keys and values the row holds; fewer than the prompt's.

    Returns:
        logits `[1 + draft, vocabulary]`: after the prompt, and after each draft token.
    """
    *chunks, (last, end) = grid_chunks(start, len(prompt_ids))
    for begin, chunk_end in chunks:
        chunk = Part(row, begin, prompt_ids[begin:chunk_end])
        forward(model, cache, [chunk], logits_to_keep=1)
    ids = [*prompt_ids[last:], *draft.token_ids]
    parents = step_parents(draft, end - last, len(ids)) if draft.parents else None
    part = Part(row, last, ids, parents)
    return forward(model, cache, [part], logits_to_keep=1 + len(draft.token_ids))


def grid_chunks(start: int, end: int) -> list[tuple[int, int]]:
    """Chunks of at most `PREFILL_CHUNK` tokens from `start` to `end`.

    >>> grid_chunks(256, 700)
    [(256, 512), (512, 700)]
    """
    begins = range(start, end, PREFILL_CHUNK)
    return [(begin, min(begin + PREFILL_CHUNK, end)) for begin in begins]
