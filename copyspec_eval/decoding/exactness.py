"""Steps whose logits are the same bits however wide they are, measured on the model itself.

A library chooses its kernels by shape, so that a position's last bits depend on how many tokens
share its step. Shapes fall into classes of equal bits; which ones depends on model, dtype, device,
threads and processor. Exact mode keeps to one class.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.forced_text import KEY_BLOCK, PREFILL_CHUNK, ForcedText
from copyspec_eval.decoding.serving import served
from copyspec_eval.decoding.widths import exact_extent, filling, ladder, padded
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

PREFILL_WIDTHS = (8, 16, 32, 48, 64, 96, 128, PREFILL_CHUNK)
"""Of a prefill's chunks in exact mode. A prefill has one row, and steps may have several."""
_MOST_TOKENS = 256
"""Of a packed step in exact mode."""
_FILLED = 256
"""Tokens that are read in packed steps of each total."""

_BLOCK_LENGTHS = tuple(range(64, KEY_BLOCK, 64))
_AT_THE_END = 4
"""Positions that are read at the end of a short block, in narrow steps."""


def fixed_steps(num_draft_tokens: int) -> ExactSteps:
    """Steps of one width that holds a draft and the token before it, or else the widest there is.

    >>> fixed_steps(10).widths
    (16,)
    """
    width = next((width for width in FIXED_WIDTHS if num_draft_tokens < width), FIXED_WIDTHS[-1])
    return ExactSteps("fixed width", (width,), block_lengths=(), any_batch=False)


@torch.inference_mode()
def measure_exact_steps(
    model: PreTrainedModel, token_ids: Sequence[int], widest: int, batch_size: int
) -> ExactSteps | None:
    """Find the widths whose bits are those of plain decoding: one-token steps, else two rows.

    A text is teacher-forced through the model: every row of every step is compared, with junk
    behind the right tokens and then written over, after contexts of 48 and 560 tokens, at the
    extent that holds them and with a block of masked keys more. Where that block changes nothing,
    it is measured how short a last block may be, and whether a prefill can take such steps, too.

    Args:
        model: a model that `probe.probe` accepts.
        token_ids: real text in the model's tokens.
        widest: tokens of the widest step that is wanted.
        batch_size: rows side by side.

    Returns:
        the steps; None where those of eight tokens do not agree either, so that there is no class
        worth having.
    """
    # The next one at the top, too: an odd width among even ones may differ rarely.
    widest = max(widest, _USUAL)
    widths = tuple(width for width in ladder(widest) if width in ladder(2 * widest))
    contexts = fitting_contexts(model, _length(widths))
    with served(model, exact=True):
        texts = [
            ForcedText(model, token_ids, batch_size, context, _length(widths))
            for context in contexts
        ]
        kinds: tuple[tuple[int, StepKind], ...] = ((1, "one row"), (2, "two rows"))
        for narrowest, kind in kinds:
            steps = _steps(kind, texts, [w for w in widths if w >= narrowest])
            if steps is not None and steps.block_lengths:
                some = {steps.widths[0], padded(steps.widths, _USUAL), steps.widths[-1]}
                lengths = measure_block_lengths(model, token_ids, sorted(some), batch_size)
                steps = replace(steps, block_lengths=lengths)
                if not steps.any_batch:
                    return steps
                wide = _prefill_widths(model, token_ids, steps, PREFILL_CHUNK)
                steps = replace(steps, prefill_widths=wide)
                if batch_size == 1:
                    return steps
                # A single token has kernels of its own; it takes one of padding.
                among = ladder(_MOST_TOKENS)[1:]
                wider = steps.widths[1:]
                totals = _totals(model, token_ids, steps, batch_size, among, wider)
                return replace(steps, totals=totals)
            if steps is not None:
                return steps
    return None


@torch.inference_mode()
def measure_block_lengths(
    model: PreTrainedModel, token_ids: Sequence[int], widths: Sequence[int], batch_size: int
) -> tuple[int, ...]:
    """How long a last block of keys may be, so that the bits are those of a whole one.

    Measured within `served`, at the ends of first and second blocks of 64 to 448 keys.

    Args:
        model, token_ids, batch_size: as for `measure_exact_steps`.
        widths: in tokens, of the steps that are read; a block takes those that fit.

    Returns:
        lengths in keys, ascending; the last is a whole block.
    """
    limit = _most_positions(model)
    lengths = [*_BLOCK_LENGTHS]
    for block in (0, KEY_BLOCK):
        if block < limit:
            lengths = [length for length in lengths if block + length <= limit]
            text = ForcedText(model, token_ids, batch_size, block + max(lengths, default=1), 0)
            lengths = [n for n in lengths if _is_as_whole(text, block, n, widths, batch_size)]
    return (*lengths, KEY_BLOCK)


@torch.inference_mode()
def check_exact_steps(
    model: PreTrainedModel, token_ids: Sequence[int], steps: ExactSteps, batch_size: int
) -> bool:
    """Whether `steps` hold, by a look at one context: each width once, every row of it.

    Of a fixed width, whether a token's bits are the same with junk behind it in the step.
    Of a last block of keys, whether its length matters in a step of eight tokens.
    Of a prefill's chunks, each width once; of packed steps, the fewest and the most tokens.

    Args:
        model, token_ids, batch_size: as for `measure_exact_steps`.
        steps: measured before, or fixed.
    """
    widths = steps.widths
    widest = widths[-1]
    useful = padded(widths, _USUAL)
    with served(model, exact=True):
        [context, *_] = fitting_contexts(model, widest + useful)
        text = ForcedText(model, token_ids, batch_size, context, widest + useful)
        reference = text.read(widest, widest)
        if not agree(text, reference, useful, useful):
            return False
        if not all(torch.equal(text.read(w, w), reference[:, :w]) for w in widths[1:-1]):
            return False
        if not torch.equal(text.read(widths[0], useful), reference[:, :useful]):
            return False
        lengths = steps.block_lengths[:-1]
        blocks = ForcedText(model, token_ids, batch_size, max(lengths, default=1), 0)
        if not all(_is_as_whole(blocks, 0, n, (useful,), batch_size) for n in lengths):
            return False
        wide = steps.prefill_widths
        if wide and wide != _prefill_widths(model, token_ids, steps, 1):
            return False
        some = steps.totals[:: max(1, len(steps.totals) - 1)]
        return some == (_totals(model, token_ids, steps, batch_size, some, ()) if some else ())


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
                extent = text.capacity if spare else None
                reference = text.read(remaining[0], length, extent=extent)
                agreeing = tuple(
                    width
                    for width in agreeing
                    if width == remaining[0]
                    or agree(text, reference, width, max(width, _FEWEST), extent)
                )
            yield agreeing
            remaining = tuple(width for width in remaining if width not in agreeing)


def _prefill_widths(
    model: PreTrainedModel, token_ids: Sequence[int], steps: ExactSteps, count: int
) -> tuple[int, ...]:
    """Those of `PREFILL_WIDTHS` that have the bits of `steps`, as a prefill takes them: alone.

    Of each, at least `count` positions are read.
    """
    [context, *_] = fitting_contexts(model, PREFILL_CHUNK)
    text = ForcedText(model, token_ids, 1, context, PREFILL_CHUNK)
    reference = text.read(padded(steps.widths, _USUAL), PREFILL_CHUNK)

    def agrees(width: int) -> bool:
        length = max(width, count // width * width)
        extent = exact_extent(context + length, steps.block_lengths)
        return torch.equal(text.read(width, length, extent=extent), reference[:, :length])

    return tuple(filter(agrees, PREFILL_WIDTHS))


def _totals(
    model: PreTrainedModel,
    token_ids: Sequence[int],
    steps: ExactSteps,
    batch_size: int,
    among: Sequence[int],
    widths: Sequence[int],
) -> tuple[int, ...]:
    """Those of the totals `among` at which packed steps have the bits of `steps`.

    Each is filled, small ones at several positions; and each of `widths` is once wider than the
    rows beside it: if that has other bits, there are none.
    """
    [context, *_] = fitting_contexts(model, steps.widths[-1])
    text = ForcedText(model, token_ids, batch_size, context, steps.widths[-1])
    reference = text.read(steps.widths[-1], steps.widths[-1])

    def agrees(total: int, lengths: Sequence[int], first: int = 0) -> bool:
        attended = sorted({steps.widths[0], padded(steps.widths, max(lengths))})
        rows = text.read_packed(lengths, attended, total, first)
        return all(
            torch.equal(row, own[first : first + len(row)])
            for row, own in zip(rows, reference, strict=False)
        )

    def holds(total: int) -> bool:
        lengths = filling(total, steps.widths, batch_size)
        ends = range(max(lengths), reference.shape[1] + 1, max(lengths))
        return all(
            agrees(total, lengths, end - max(lengths)) for end in ends[: -(-_FILLED // total)]
        )

    totals = tuple(filter(holds, among))
    for width in widths:
        # In another row each time.
        lengths = [1] * batch_size
        lengths[width % batch_size] = width
        total = next((total for total in totals if total >= sum(lengths)), 0)
        if not total or not agrees(total, lengths):
            return ()
    return totals


def fitting_contexts(
    model: PreTrainedModel, length: int, contexts: Sequence[int] = CONTEXTS
) -> list[int]:
    """Those after which the model has `length` positions left; at least one."""
    return [c for c in contexts if c + length <= _most_positions(model)] or [1]


def agree(
    text: ForcedText,
    reference: torch.Tensor,
    width: int,
    count: int,
    extent: int | None = None,
) -> bool:
    """Whether steps of `width` tokens give the first `count` positions of `reference`, bit for bit.

    First one step of which half is junk, then all of them, written over the junk.
    """
    before_junk = width - width // 2
    return torch.equal(
        text.read(width, before_junk, extent=extent), reference[:, :before_junk]
    ) and torch.equal(text.read(width, count, extent=extent), reference[:, :count])


def _steps(kind: StepKind, texts: Sequence[ForcedText], widths: Sequence[int]) -> ExactSteps | None:
    """The class of `widths[0]`; None if no step of a useful width is in it."""
    agreeing = list(widths)
    readings = []
    for text in texts:
        reference = _reference(text, widths)
        if reference is None:
            return None
        agreeing = [widths[0], *_agreeing(text, reference, agreeing[1:])]
        readings.append((text, reference))
    any_batch = all(is_as_alone(text, reference) for text, reference in readings)
    some = sorted({widths[0], _USUAL, agreeing[-1]})
    any_extent = all(
        _agreeing(text, reference, some, text.capacity) == some for text, reference in readings
    )
    if not any_extent:
        # Steps then attend to so many keys, and all widths have to agree there.
        for text in texts:
            reference = _reference(text, widths, text.capacity)
            if reference is None:
                return None
            agreeing = [widths[0], *_agreeing(text, reference, agreeing[1:], text.capacity)]
            any_batch = any_batch and is_as_alone(text, reference)
    return ExactSteps(kind, tuple(agreeing), (KEY_BLOCK,) if any_extent else (), any_batch)


def _reference(
    text: ForcedText, widths: Sequence[int], extent: int | None = None
) -> torch.Tensor | None:
    """Logits of all positions in the bits of `widths[0]`; None if those of eight tokens differ."""
    reference = text.read(widths[0], _USUAL, extent=extent)
    if not agree(text, reference, _USUAL, _USUAL, extent):
        return None
    reference = text.read(widths[0], _PLAIN, extent=extent)
    if not agree(text, reference, _USUAL, _PLAIN, extent):
        return None
    # Positions further on are read in steps that were just seen to agree.
    further = text.read(_USUAL, _length(widths) - _PLAIN, _PLAIN, extent)
    return torch.cat([reference, further], dim=1)


def _agreeing(
    text: ForcedText, reference: torch.Tensor, widths: Sequence[int], extent: int | None = None
) -> list[int]:
    return [width for width in widths if agree(text, reference, width, max(width, _FEWEST), extent)]


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


def _most_positions(model: PreTrainedModel) -> float:
    return getattr(model.config.get_text_config(), "max_position_embeddings", None) or math.inf


def _is_as_whole(
    text: ForcedText, block: int, length: int, widths: Sequence[int], batch_size: int
) -> bool:
    """Whether, at the end of `length` keys from `block` on, the bits are those of a whole block."""
    # Each row of the text is a position behind the one before.
    room = length - (batch_size - 1)
    for width in (width for width in widths if width <= room):
        count = max(width, min(room, _AT_THE_END)) // width * width
        first = block + length - count - text.context
        whole, short = (
            text.read(width, count, first, block + keys) for keys in (KEY_BLOCK, length)
        )
        if not torch.equal(whole, short):
            return False
    return room >= widths[0]


def _length(widths: Sequence[int]) -> int:
    """Positions that are read."""
    return _PLAIN + widths[-1]
