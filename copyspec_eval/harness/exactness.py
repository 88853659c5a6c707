"""Which exact modes hold for a model, as lm-eval loads it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.exactness import mismatches, text_tokens
from copyspec_eval.drafters.registry import LONGEST_DRAFT
from copyspec_eval.harness.lm import CopySpecLM
from copyspec_eval.types import FIXED_WIDTHS, ExactMode


def exactness_lines(
    pretrained: str, options: Mapping[str, Any], batch_sizes: Sequence[int]
) -> Iterator[str]:
    """Lines for people: the model, then what differs at each batch size in each mode."""
    lm = CopySpecLM(pretrained, drafter="none", exact=False, **options)
    model, token_ids = lm.prepare().model, text_tokens(lm.tokenizer)
    dtype = str(lm.model.dtype).removeprefix("torch.")
    yield f"{pretrained}, {dtype}, {lm.device}, {torch.get_num_threads()} threads"
    modes = [ExactMode(), *map(ExactMode, FIXED_WIDTHS)]
    if not kernels.serve(lm.model):
        yield "invariant: our kernels do not serve this model here"
        del modes[0]
    for batch_size, mode in itertools.product(batch_sizes, modes):
        name = f"batch {batch_size}, {mode.name}{f' {mode.width}' if mode.width else ''}"
        longest = mode.num_draft_tokens or LONGEST_DRAFT
        differs = False
        for what, module in mismatches(model, token_ids, mode, longest, batch_size):
            yield f"{name}: differs {what}, first in {module}"
            differs = True
        if not differs:
            yield f"{name}: holds"
