"""Exact mode: which way it takes for a model, and the check that it holds.

Where our kernels compute every token alone, a step may have any width (`ExactMode()`). A library
chooses its kernels by shape, so that a token's last bits depend on what shares its step: there,
every step has one width, in plain decoding as with drafts (`ExactMode(width)`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import cycle, islice
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.announced import announced
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.forward import Part, forward, key_extent
from copyspec_eval.decoding.modules import engine_kernels
from copyspec_eval.decoding.prefill import Prefill
from copyspec_eval.decoding.steps import Steps
from copyspec_eval.errors import ModelError, OptionError
from copyspec_eval.paths import tasks_dir
from copyspec_eval.types import EXACT_MEANS, FIXED_WIDTHS, ExactMode

logger = logging.getLogger("lm_eval.copyspec")

_TEXT_TOKENS = 4096
_USUAL_DRAFT = 15
"""Tokens of the longest draft at a fixed width where no longer one is needed."""

_CONTEXTS, _CONTEXTS_FIXED = (48, 250), (48, 506)
"""Tokens in front of those that are compared: few, and so many that a block of keys ends among
them, of our attention or of torch's."""
_COUNT = 8
"""Tokens that are compared where steps have any width."""
_WIDTHS = (2, 5, _COUNT)
"""Of the steps in which they are read again."""
_MASKED_KEYS = 64


class Mismatch(NamedTuple):
    """Two ways of reading the same text whose bits differ.

    Attributes:
        what: the second way, for people.
        module: the first module whose outputs differ.
    """

    what: str
    module: str


@announced("checking that drafts do not change a bit of this model's answers")
def exact_mode(
    model: PreTrainedModel, tokenizer: Any, *, longest: int, needed: int, batch_size: int
) -> ExactMode:
    """The way that exact mode takes, after a check of some seconds on this model.

    Args:
        model: the model, loaded.
        tokenizer: its tokenizer, which turns a text of ours into tokens for it.
        longest: tokens of the longest draft that is wanted.
        needed: tokens of a draft that a step must hold.
        batch_size: rows side by side.

    Raises:
        OptionError: no step holds a draft of `needed` tokens.
        ModelError: neither way holds.
    """
    token_ids = text_tokens(tokenizer)
    width = fixed_width(max(needed, min(longest, _USUAL_DRAFT)))
    found: Mismatch | None = None
    for mode in (ExactMode(), ExactMode(width)):
        if mode.width is None and not kernels.serve(model):
            continue
        found = check_exact(model, token_ids, mode, longest, batch_size)
        if found is None:
            if mode.num_draft_tokens is not None and needed > mode.num_draft_tokens:
                raise OptionError(
                    f"num_draft_tokens={needed} is over {mode.num_draft_tokens}, the most that "
                    "exact mode verifies here; pass a smaller one or exact=false"
                )
            logger.info("exact mode gives %s", EXACT_MEANS[mode.name])
            return mode
        logger.info("exact mode %s does not hold: %s in %s", mode.name, *found)
    assert found is not None
    raise ModelError(
        f"model type {model.config.model_type!r} computes a token from what else is in its step "
        f"({found.what}, first in {found.module}); pass exact=false"
    )


def fixed_width(num_draft_tokens: int) -> int:
    """The narrowest of the fixed widths that holds a draft and a token before it, else the widest.

    >>> fixed_width(10), fixed_width(96)
    (16, 32)
    """
    return next((width for width in FIXED_WIDTHS if num_draft_tokens < width), FIXED_WIDTHS[-1])


def check_exact(
    model: PreTrainedModel,
    token_ids: Sequence[int],
    mode: ExactMode,
    longest: int,
    batch_size: int,
) -> Mismatch | None:
    """The first of `mismatches`; None if there is none."""
    return next(mismatches(model, token_ids, mode, longest, batch_size), None)


@torch.inference_mode()
def mismatches(
    model: PreTrainedModel,
    token_ids: Sequence[int],
    mode: ExactMode,
    longest: int,
    batch_size: int,
) -> Iterator[Mismatch]:
    """Read a real text in several ways and compare the logits bit for bit with plain decoding's.

    The same tokens are read in steps of other widths (at a fixed width, at other places in the
    step), in a prefill, with the largest embeddings behind them and in the rows beside them, with
    more masked keys, and in a batch in rows of equal and of unlike widths.

    Args:
        model: the model, as decoding runs it.
        token_ids: the text; it is repeated if it is short.
        mode: what is checked.
        longest: tokens of the longest draft.
        batch_size: rows side by side.
    """
    for context in _CONTEXTS_FIXED if mode.width else _CONTEXTS:
        with engine_kernels(model, exact=True):
            text = _Text(model, token_ids, mode, longest, batch_size, context)
            if not text.fits:
                continue
            plain = text.plain()
            for name, read in text.readings():
                reading = read()
                if not torch.equal(reading.logits, plain.logits[reading.positions]):
                    what = f"{name}, after {text.context} tokens"
                    yield Mismatch(what, _first_module(model, text, read))


class _Reading(NamedTuple):
    """Logits of the first row after tokens that are counted from the context's end.

    Attributes:
        positions: which tokens.
        logits: `[positions, vocabulary]`.
        lengths: how many of them each forward read.
    """

    positions: slice
    logits: torch.Tensor
    lengths: Sequence[int]


class _Text:
    """A text in the rows of a cache, and ways of reading on from its context.

    All rows have the same context. In the rows beside the first one, and behind it if `is_loud`,
    the largest embedding follows, which is the least alike to anything.

    Attributes:
        context: tokens in front of those that are read.
        fits: whether the model has positions enough.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        token_ids: Sequence[int],
        mode: ExactMode,
        longest: int,
        batch_size: int,
        context: int,
    ) -> None:
        self._model, self._is_fixed, self._batch_size = model, mode.width is not None, batch_size
        # Of a fixed width, every place of a step.
        self._count = mode.width or _COUNT
        # Wide enough for every reading, however short the drafts.
        self._steps = Steps(model, max(longest, self._count), mode.width, batch_size)
        self._prefill = Prefill(self._is_fixed)
        limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        length = context + self._count + self._steps.widest
        self.fits = limit is None or length <= limit or context == _CONTEXTS[0]
        self.context = context if limit is None or length <= limit else 1
        self._ids = list(islice(cycle(token_ids), length))
        self._loud = _largest_embedding(model)
        self._extent = self._steps.extent_of(length)
        self._cache = RowCache(batch_size, self._extent + _MASKED_KEYS)
        if self.fits:
            self._prefill.read(model, self._cache, 0, self._ids[: self.context])
            for row in range(1, batch_size):
                self._cache.copy_row(0, row)

    def plain(self) -> _Reading:
        """As plain decoding reads: a token of each row a step."""
        steps = [self._step([1] * self._batch_size, at) for at in range(self._count)]
        logits = torch.cat([step.logits for step in steps])
        return _Reading(slice(self._count), logits, [1] * self._count)

    def readings(self) -> Iterator[tuple[str, Callable[[], _Reading]]]:
        """Other ways, with their names."""
        half = [self._count // 2]
        if self._is_fixed:
            for count in (2, 5, self._count):
                yield f"at {count} places of the step", partial(self._in_steps, count)
        else:
            for count in (1, *_WIDTHS, self._steps.widest):
                yield f"in steps of {count}", partial(self._in_steps, count)
            yield "in a prefill", self._in_prefill
            yield "with more masked keys", partial(self._step, half, num_masked=_MASKED_KEYS)
        yield "with other tokens behind them", partial(self._step, half, is_loud=True)
        if self._batch_size > 1:
            yield "beside other rows", partial(self._step, half * self._batch_size)
            if not self._is_fixed:
                unlike = [3, *[1, 9, 2] * self._batch_size][: self._batch_size]
                yield "beside rows of other widths", partial(self._step, unlike)

    def _in_steps(self, count: int) -> _Reading:
        """Whole steps of `count` tokens, as many as hold what is compared."""
        steps = [self._step([count], at) for at in range(0, self._count, count)]
        logits = torch.cat([step.logits for step in steps])
        return _Reading(slice(self._count), logits[: self._count], [count] * len(steps))

    def _in_prefill(self) -> _Reading:
        cache = RowCache(1, self._extent)
        logits = self._prefill.read(self._model, cache, 0, self._ids[: self.context + self._count])
        return _Reading(slice(self._count - 1, self._count), logits, [])

    def _step(
        self,
        lengths: Sequence[int],
        at: int = 0,
        is_loud: bool = False,
        num_masked: int = 0,
    ) -> _Reading:
        """The first row's tokens from `at` on, in a step of so many tokens per row.

        Args:
            lengths: of the first rows; the others stand still.
            at: counted from the end of the context.
            is_loud: whether as many tokens of the largest embedding follow.
            num_masked: keys attended to beyond those needed, all masked.
        """
        start, num_compared = self.context + at, min(lengths[0], self._count)
        lengths = [*lengths, *[0] * (self._batch_size - len(lengths))]
        lengths[0] *= 1 + (is_loud and not self._is_fixed)
        width = self._steps.common_width(lengths)
        parts = []
        for row, length in enumerate(lengths):
            real = [] if row else self._ids[start:]
            real = real[:num_compared] if is_loud else real
            tokens = [*real, *[self._loud] * max(length, width)][: width or length]
            if tokens:
                parts.append(Part(row, start, tokens))
        extent = key_extent(max(part.start + len(part.token_ids) for part in parts))
        extent = self._extent if self._is_fixed else extent + num_masked
        logits = forward(self._model, self._cache, parts, extent)[:num_compared]
        return _Reading(slice(at, at + num_compared), logits, [num_compared])


def _first_module(model: PreTrainedModel, text: _Text, read: Callable[[], _Reading]) -> str:
    """The first module whose inputs or outputs differ between plain reading and `read`."""
    seen = []
    for reading in (text.plain, read):
        with _states(model) as states:
            lengths = reading().lengths
        seen.append({name: _of_first_row(each, lengths) for name, each in states.items()})
    for (name, is_input), plain in seen[0].items():
        other = seen[1].get((name, is_input))
        if plain is not None and other is not None:
            count = min(len(plain), len(other))
            if not torch.equal(plain[:count], other[:count]):
                return f"{name.rpartition('.')[0]}, before {name}" if is_input else name
    return "none of its modules alone"


@contextmanager
def _states(model: PreTrainedModel) -> Iterator[dict[tuple[str, bool], list[torch.Tensor]]]:
    """The tensors that go into modules and come out of them, of every forward, in their order."""
    states: dict[tuple[str, bool], list[torch.Tensor]] = {}

    def keep(key: tuple[str, bool], values: Any) -> None:
        value = values[0] if isinstance(values, tuple) and values else values
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            states.setdefault(key, []).append(value.detach().clone())

    hooks = []
    modules: list[tuple[str, Any]] = [*model.named_modules()]
    for name, module in modules:
        hooks += [
            module.register_forward_pre_hook(
                lambda module, given, name=name: keep((name, True), given)
            ),
            module.register_forward_hook(
                lambda module, given, output, name=name: keep((name, False), output)
            ),
        ]
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()


def _of_first_row(states: Sequence[torch.Tensor], lengths: Sequence[int]) -> torch.Tensor | None:
    """What belongs to the first row's tokens, `[tokens, …]`; None if that cannot be told."""
    if len(states) != len(lengths):
        return None
    rows = [each[0] if each.dim() > 2 else each for each in states]
    if any(row.dim() != 2 or len(row) < length for row, length in zip(rows, lengths, strict=True)):
        return None
    return torch.cat([row[:length] for row, length in zip(rows, lengths, strict=True)])


def _largest_embedding(model: PreTrainedModel) -> int:
    """The token of the largest embedding: the least alike to what is beside it."""
    embeddings: Any = model.get_input_embeddings()
    weight = embeddings.weight
    if weight.device.type == "meta" or not weight.is_floating_point():
        return 1
    return int(weight.detach().float().nan_to_num().norm(dim=-1).argmax())


def text_tokens(tokenizer: Any) -> list[int]:
    """A text of ours in a tokenizer's tokens."""
    token_ids: list[int] = tokenizer(
        _text(), add_special_tokens=False, truncation=True, max_length=_TEXT_TOKENS
    )["input_ids"]
    return token_ids


@cache
def _text() -> str:
    """The conversations that come with the package: prose, code and figures."""
    path = tasks_dir() / "copyspec_quickstart" / "redundant.jsonl"
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return "\n".join(text for row in rows for text in (*row["turns"], *row["answers"]))
