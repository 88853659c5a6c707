"""Steps whose logits are the same bits however wide they are, measured on the model itself.

A library chooses its kernels by shape, so that a position's last bits depend on how many tokens
share its step. Shapes fall into classes of equal bits; which ones depends on model, dtype, device,
threads and processor. Exact mode keeps to one class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.forced_text import ForcedText
from copyspec_eval.decoding.serving import served
from copyspec_eval.types import FIXED_WIDTHS, ExactSteps, StepKind

CONTEXTS = (48, 560)
"""Tokens in front of the measured steps: in the first block of keys, and in the second."""

_LONG_CONTEXT = 1900

_PLAIN = 64
"""Positions that are read in plain decoding's steps; wider steps go on from there."""
_FEWEST = 24
"""Positions at least that are read in steps of each width."""
_USUAL = 8
"""A class that does not reach this width is not worth having."""


def ladder(widest: int) -> tuple[int, ...]:
    """Widths up to `widest` or a little more: few, and so dense that padding costs little.

    >>> ladder(11)
    (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12)
    >>> ladder(64)[10:]
    (14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
    """
    widths = [1]
    while widths[-1] < widest:
        widths.append(widths[-1] + max(1, 1 << widths[-1].bit_length() >> 3))
    return tuple(sorted({*widths, widest}))


def padded(widths: Sequence[int], width: int) -> int:
    """The narrowest of `widths`, ascending, that is at least `width`."""
    return next(wide for wide in widths if wide >= width)


def most_padding(widths: Sequence[int]) -> int:
    """The most tokens by which `padded` lengthens a step.

    >>> most_padding((2, 3, 4, 8))
    3
    """
    return max(wider - narrower for narrower, wider in pairwise((0, *widths))) - 1


def fixed_steps(num_draft_tokens: int) -> ExactSteps:
    """Steps of one width that holds a draft and the token before it, or else the widest there is.

    >>> fixed_steps(10).widths
    (16,)
    """
    width = next((width for width in FIXED_WIDTHS if num_draft_tokens < width), FIXED_WIDTHS[-1])
    return ExactSteps("fixed width", (width,), any_extent=False, any_batch=False)


@torch.inference_mode()
def measure_exact_steps(
    model: PreTrainedModel, token_ids: Sequence[int], widest: int, batch_size: int
) -> ExactSteps | None:
    """Find the widths whose bits are those of plain decoding: one-token steps, else two rows.

    A text is teacher-forced through the model: every row of every step is compared, with junk
    behind the right tokens and then written over, after contexts of 48 and 560 tokens, at the
    extent that holds them and with a block of masked keys more.

    Args:
        model: a model that `serving.check_config` accepts.
        token_ids: real text in the model's tokens.
        widest: tokens of the widest step that is wanted.
        batch_size: rows side by side.

    Returns:
        the steps; None where those of eight tokens do not agree either, so that there is no class
        worth having.
    """
    widths = ladder(max(widest, _USUAL))
    contexts = fitting_contexts(model, _length(widths))
    with served(model, exact=True):
        texts = [
            ForcedText(model, token_ids, batch_size, context, _length(widths))
            for context in contexts
        ]
        kinds: tuple[tuple[int, StepKind], ...] = ((1, "one row"), (2, "two rows"))
        for narrowest, kind in kinds:
            steps = _steps(kind, texts, [w for w in widths if w >= narrowest])
            if steps is not None:
                return steps
    return None


@torch.inference_mode()
def check_exact_steps(
    model: PreTrainedModel, token_ids: Sequence[int], steps: ExactSteps, batch_size: int
) -> bool:
    """Whether `steps` hold, by a look at one context: each width once, every row of it.

    Of a fixed width, whether a token's bits are the same with junk behind it in the step.

    Args:
        model, token_ids, batch_size: as for `measure_exact_steps`.
        steps: measured before, or fixed.
    """
    widths = steps.widths
    length = _length(widths)
    with served(model, exact=True):
        text = ForcedText(model, token_ids, batch_size, fitting_contexts(model, length)[0], length)
        useful = padded(widths, _USUAL)
        reference = text.read(widths[0], useful)
        if not agree(text, reference, useful, useful):
            return False
        further = text.read(useful, length - useful, useful)
        reference = torch.cat([reference, further], dim=1)
        return all(torch.equal(text.read(w, w), reference[:, :w]) for w in widths[1:])


@torch.inference_mode()
def width_classes(
    model: PreTrainedModel, token_ids: Sequence[int], widest: int, batch_size: int
) -> Iterator[tuple[int, ...]]:
    """All widths up to `widest` in classes of the same bits, the one of the narrowest first.

    Measured as in `measure_exact_steps`, of every width, after a context of 1,900 tokens, too.

    Args:
        model, token_ids, batch_size: see there.
        widest: in tokens.
    """
    remaining: tuple[int, ...] = tuple(range(1, widest + 1))
    length = max(widest, _FEWEST)
    with served(model, exact=True):
        texts = [
            ForcedText(model, token_ids, batch_size, context, length + widest)
            for context in fitting_contexts(model, length + widest, (*CONTEXTS, _LONG_CONTEXT))
        ]
        while remaining:
            agreeing = remaining
            for text, spare in product(texts, (False, True)):
                reference = text.read(remaining[0], length, spare=spare)
                agreeing = tuple(
                    width
                    for width in agreeing
                    if width == remaining[0]
                    or agree(text, reference, width, max(width, _FEWEST), spare)
                )
            yield agreeing
            remaining = tuple(width for width in remaining if width not in agreeing)


def fitting_contexts(
    model: PreTrainedModel, length: int, contexts: Sequence[int] = CONTEXTS
) -> list[int]:
    """Those after which the model has `length` positions left; at least one."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return [c for c in contexts if limit is None or c + length <= limit] or [1]


def agree(
    text: ForcedText, reference: torch.Tensor, width: int, count: int, spare: bool = False
) -> bool:
    """Whether steps of `width` tokens give the first `count` positions of `reference`, bit for bit.

    First one step of which half is junk, then all of them, written over the junk.
    """
    before_junk = width - width // 2
    return torch.equal(
        text.read(width, before_junk, spare=spare), reference[:, :before_junk]
    ) and torch.equal(text.read(width, count, spare=spare), reference[:, :count])


def _steps(kind: StepKind, texts: Sequence[ForcedText], widths: Sequence[int]) -> ExactSteps | None:
    """The class of `widths[0]`; None if no step of a useful width is in it."""
    agreeing = list(widths)
    any_extent, any_batch = True, True
    for text in texts:
        tight = None
        for spare in (False, True):
            reference = text.read(widths[0], _USUAL, spare=spare)
            if not agree(text, reference, _USUAL, _USUAL, spare):
                return None
            reference = text.read(widths[0], _PLAIN, spare=spare)
            if not agree(text, reference, _USUAL, _PLAIN, spare):
                return None
            # Positions further on are read in steps that were just seen to agree.
            further = text.read(_USUAL, _length(widths) - _PLAIN, _PLAIN, spare)
            reference = torch.cat([reference, further], dim=1)
            agreeing = [
                width
                for width in agreeing
                if width == widths[0] or agree(text, reference, width, max(width, _FEWEST), spare)
            ]
            any_extent &= tight is None or torch.equal(reference, tight)
            tight = reference
        any_batch = any_batch and is_as_alone(text, reference)
    return ExactSteps(kind, tuple(agreeing), any_extent, any_batch)


def is_as_alone(text: ForcedText, reference: torch.Tensor) -> bool:
    """Whether every row of `reference`, `[rows, positions, vocabulary]`, has the bits that it has
    in a batch of one, be they read in steps of eight tokens, or of one, or two.
    """
    if len(reference) == 1:
        return True
    narrow = text.row(0)
    return any(
        torch.equal(narrow.read(width, _FEWEST)[0], reference[0, :_FEWEST]) for width in (1, 2)
    ) and all(
        torch.equal(text.row(row).read(_USUAL, reference.shape[1])[0], reference[row])
        for row in range(len(reference))
    )


def _length(widths: Sequence[int]) -> int:
    """Positions that are read."""
    return _PLAIN + widths[-1]
