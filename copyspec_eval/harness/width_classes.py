"""Which widths of step have the same bits, for a model as lm-eval loads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from copyspec_eval.decoding.exact_steps import text_tokens
from copyspec_eval.decoding.exactness import measure_block_lengths, width_classes
from copyspec_eval.decoding.serving import served
from copyspec_eval.decoding.widths import ladder
from copyspec_eval.errors import OptionError
from copyspec_eval.harness.lm import CopySpecLM
from copyspec_eval.types import StepKind

_USUAL = 8


def class_lines(
    pretrained: str, options: Mapping[str, Any], widest: int, batch_sizes: Sequence[int]
) -> Iterator[str]:
    """Lines of text: the model, then each batch size with its classes, as they are measured.

    Args:
        pretrained: as for `CopySpecLM`.
        options: further arguments of it.
        widest: widths up to this are measured, in tokens.
        batch_sizes: rows side by side.

    Raises:
        OptionError: `widest` is under 8.
        ModelError: as `CopySpecLM`.
    """
    if widest < _USUAL:
        raise OptionError(f"widest={widest} is under {_USUAL}, the width that classes are named by")
    lm = CopySpecLM(pretrained, drafter="none", exact=False, **options)
    dtype = str(lm.model.dtype).removeprefix("torch.")
    yield f"{pretrained}, {dtype}, {lm.device}, {torch.get_num_threads()} threads"
    yield "Step widths in tokens that have the same bits, up to | between classes:"
    token_ids = text_tokens(lm.tokenizer)
    for batch_size in batch_sizes:
        classes = list(width_classes(lm.model, token_ids, widest, batch_size))
        [usual] = [widths for widths in classes if _USUAL in widths]
        some = [width for width in ladder(widest) if width in usual]
        with served(lm.model, exact=True):
            lengths = measure_block_lengths(lm.model, token_ids, some, batch_size)
        yield (
            f"batch {batch_size}: {' | '.join(map(format_widths, classes))}"
            f" (plain decoding: {step_kind(classes)};"
            f" last block of keys: {', '.join(map(str, lengths))})"
        )


def step_kind(classes: Sequence[Sequence[int]]) -> StepKind:
    """What exact mode makes of classes of widths."""
    usual = next(widths for widths in classes if _USUAL in widths)
    return "one row" if 1 in usual else "two rows" if 2 in usual else "fixed width"


def format_widths(widths: Sequence[int]) -> str:
    """Ascending widths with runs of them put together.

    >>> format_widths((1, 2, 3, 4, 8, 10, 11))
    '1-4, 8, 10-11'
    """
    runs: list[list[int]] = []
    for width in widths:
        if runs and width == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], width]
        else:
            runs.append([width])
    return ", ".join("-".join(map(str, run)) for run in runs)
