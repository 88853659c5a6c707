"""Exact mode: the choice of how to provide it for a model, and the check that it holds."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle, islice
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from copyspec_eval.announced import announced
from copyspec_eval.decoding import attention, kernels
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.forward import key_extent
from copyspec_eval.decoding.given import Given, scripted_drafts
from copyspec_eval.decoding.model_support import position_limit, refusal
from copyspec_eval.decoding.modules import engine_kernels
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.repeated_steps import can_capture
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.errors import OptionError
from copyspec_eval.paths import tasks_dir
from copyspec_eval.types import EXACT_MEANS, FIXED_WIDTHS, ExactMode

logger = logging.getLogger("lm_eval.copyspec")

_TEXT_TOKENS = 4096
_USUAL_DRAFT = 15
"""Tokens of the longest draft at a fixed width, unless a longer one is needed."""

_COUNT = 8
"""Tokens that are compared with one-token steps where steps have any width."""
_MASKED = 32
"""Wrong tokens after them, at most: a block of keys of our attention."""
_EARLY, _EARLY_FIXED = 4, 2
"""Tokens by which the steps that are compared first stop before a block of keys ends."""
_NO_MODULE = "none of its modules alone"


class Mismatch(NamedTuple):
    """A way of reading a text whose bits differ, and the first module whose outputs do."""

    what: str
    module: str


@announced("checking that drafts do not change a bit of this model's answers")
def exact_mode(
    model: PreTrainedModel, tokenizer: Any, *, longest: int, needed: int, batch_size: int
) -> ExactMode:
    """The exact mode for this model, after a check that takes some seconds.

    Our kernels compute every token alone, so a step may have any width. A library chooses its
    kernels by shape, so a token's last bits depend on what shares its step: there, every step has
    one width, in plain decoding as with drafts. `longest` is the longest draft that is wanted and
    `needed` the longest that a step must hold, in tokens. On a GPU such steps are captured, unless
    that fails or does not hold.

    Raises:
        OptionError: no step holds a draft of `needed` tokens.
        ModelError: exact mode does not hold in either way.
    """
    token_ids = text_tokens(tokenizer)
    width = fixed_width(max(needed, min(longest, _USUAL_DRAFT)))
    mismatch: Mismatch | None = None
    modes = [ExactMode(width, "captured")] * can_capture(model)
    if kernels.serve(model):
        modes = [ExactMode()]
    for mode in (*modes, ExactMode(width)):
        try:
            with engine_kernels(model, exact=True):  # once for all readings: it takes a while
                mismatch = next(mismatches(model, token_ids, mode, longest, batch_size), None)
        except Exception as error:  # whatever CUDA raises
            if mode.steps == "eager":
                raise
            reason = str(error.__cause__ or error).strip().partition("\n")[0]
            logger.warning("steps are not captured: %s", reason)
            continue
        if mismatch is None:
            if mode.num_draft_tokens is not None and needed > mode.num_draft_tokens:
                raise OptionError(
                    f"num_draft_tokens={needed} is over {mode.num_draft_tokens}, the most that "
                    "exact mode verifies here; pass a smaller one or exact=false"
                )
            logger.info("exact mode gives %s", EXACT_MEANS[mode.name])
            return mode
        logger.info("exact mode %s does not hold: %s in %s", mode.name, *mismatch)
    assert mismatch is not None
    where = f"({mismatch.what}, first in {mismatch.module})"
    what = f"computes a token differently with other tokens in its step {where}"
    raise refusal(model, what, "pass exact=false")


def fixed_width(num_draft_tokens: int) -> int:
    """The narrowest of the fixed widths that holds a draft and a token before it, else the widest.

    >>> fixed_width(10), fixed_width(96)
    (16, 32)
    """
    return next((width for width in FIXED_WIDTHS if num_draft_tokens < width), FIXED_WIDTHS[-1])


@torch.inference_mode()
def mismatches(
    model: PreTrainedModel, token_ids: Sequence[int], mode: ExactMode, longest: int, batch_size: int
) -> Iterator[Mismatch]:
    """Decode a real text in several ways and compare the logits bit for bit with plain decoding's.

    The same tokens are read in steps of other widths, at every place of a step and in every row of
    the batch, in a prefill, with the largest embeddings after them and in other rows, in steps that
    end before, at and after the end of a block of keys, and, at last, once more in the same way.
    """
    # The widest is wide enough for every reading, however short the drafts.
    widest = mode.width or 1 + max(longest, _COUNT)
    count, room = _COUNT, _COUNT + _EARLY + widest
    before = _COUNT + _EARLY
    boundaries: tuple[int, ...] = (256,)  # to our attention, one block is like any other
    if mode.width:
        count, room, before = widest // 2, 3 * widest, 2 * widest + _EARLY_FIXED
        boundaries = key_extent(before + 1), 512
    # Blocks of keys of our attention or of torch's end there.
    longest_context = position_limit(model) - room - widest
    contexts = [end - before for end in boundaries if end - before <= longest_context] or [1]
    loud_id = _largest_embedding(model)
    for context in contexts:
        text = _Text(model, token_ids, loud_id, mode, batch_size, context, room)
        reference = plain = _Reading("when read again", [[(0, 0)] * count])
        [wanted] = text.read(plain)
        for reading in _readings(mode, widest, batch_size):
            answers = text.read(reading)
            row = next((row for row, each in enumerate(answers) if _differ(each, wanted)), None)
            if row is not None:
                name = f"in row {row} of the batch" if row else reading.name
                compared = (reference, 0), (reading, row)
                # Bits that change from run to run can differ in any reading.
                if _differ(text.read(reference)[0], wanted):
                    name, compared = plain.name, ((reference, 0), (reference, 0))
                yield Mismatch(f"{name}, after {context} tokens", text.first_module(*compared))
            elif len(answers[0]) > len(wanted):
                # It has shown to be right as far as the reference goes.
                reference, wanted = reading, answers[0]
        if not mode.width and not torch.equal(text.prefilled, wanted[count - 1]):
            yield Mismatch(f"in a prefill, after {context} tokens", _NO_MODULE)


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    count = min(len(one), len(other))
    return not torch.equal(one[:count], other[:count])


_Steps = Sequence[tuple[int, int]]
"""How many right draft tokens each step of a row has, and how many wrong ones after them."""


class _Reading(NamedTuple):
    """A way to read a text: the steps of each row in use.

    All rows hold the text; if `is_loud`, only the first does, and the others the largest embedding.
    """

    name: str
    rows: Sequence[_Steps]
    is_loud: bool = False


def _readings(mode: ExactMode, widest: int, batch_size: int) -> Iterator[_Reading]:
    yield from (_fixed_readings if mode.width else _invariant_readings)(widest, batch_size)
    yield _Reading("when read again", [[(0, 0)] * 2])


def _fixed_readings(width: int, batch_size: int) -> Iterator[_Reading]:
    """In each of the first ones a single thing differs from plain decoding, which is its name."""
    half, whole = width // 2, (width - 1, 0)
    if batch_size > 1:
        yield _Reading("beside other rows", [[(0, 0)] * 2] * 2, is_loud=True)
    yield _Reading("with other tokens after them", [[(0, width - 1)]])
    yield _Reading("at other places of the step", [[whole] * 2] * batch_size)
    early: _Steps = [(_EARLY_FIXED - 1, 0), whole]
    yield _Reading("at other places of the step", [early])
    yield _Reading("where a block of keys ends with the step", [[*early, whole]])
    yield _Reading("where a block of keys ends in the step", [[(half - 1, 0), whole, whole]])


def _invariant_readings(widest: int, batch_size: int) -> Iterator[_Reading]:
    half = _COUNT // 2
    for width in (2, 5, _COUNT):
        yield _Reading(f"in steps of {width}", [[(width - 1, 0)]])
    yield _Reading("with more masked keys", [[(half - 1, min(widest - half, _MASKED))]])
    yield _Reading(f"in a step of {widest}", [[(widest - 1, 0)]])
    yield _Reading("at other places of the step", [[(2, 0), (widest - 1, 0)]])
    at_the_end = [(_EARLY - 1, 0), (_COUNT - 1, 0)]
    yield _Reading("where a block of keys ends with the step", [at_the_end])
    if batch_size > 1:
        rows: list[_Steps] = [[(0, 0), (half - 1, 0)]] * batch_size
        yield _Reading("beside other rows", rows, is_loud=True)
        yield _Reading("in other rows", [[(_COUNT - 1, 0)]] * batch_size)
        unlike = [3, *[1, 9, 2] * batch_size][:batch_size]
        rows = [[(0, 0), (width - 1, 0)] for width in unlike]
        yield _Reading("beside rows of other widths", rows)


class _Text:
    """A text in an engine, continued from a context that all rows share.

    `prefilled` are the logits `[vocabulary]` after the context and `_COUNT` tokens more, read at
    once; at a fixed width after the context alone.

    Wrong draft tokens are `loud_id`, the largest embedding: the least alike to anything.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        token_ids: Sequence[int],
        loud_id: int,
        mode: ExactMode,
        batch_size: int,
        context: int,
        room: int,
    ) -> None:
        ids = list(islice(cycle(token_ids), context + room))
        self._context_ids, self._next_ids = ids[:context], ids[context:]
        self._loud_ids = [loud_id] * room
        # The prefill is the first step, except at a fixed width, where it has no draft.
        self._in_prompt = 0 if mode.width else 1
        self._model = model
        self._engine = Engine(
            model,
            NoDrafter,
            num_draft_tokens=room,
            exact=mode,
            batch_size=batch_size,
            # The context is read once, except for about as many tokens as a step has.
            prefix_cache=PrefixCache(math.inf, max(1, context // 2, context - (mode.width or 0))),
        )
        # Later readings reuse the context of this one, which ends later where a prefill may.
        place = context + (0 if mode.width else _COUNT)
        given = Given(ids[:place], ids[place : place + 1], {}, len(ids) - place)
        self._engine.generate([given])
        self.prefilled = given.logits[0]

    def read(
        self,
        reading: _Reading,
        on_commit: Callable[[list[int]], None] = lambda ids: None,
        watched: int = 0,
    ) -> list[torch.Tensor]:
        """Logits `[tokens, vocabulary]` after the tokens from the context on, of the text's rows.

        `on_commit` is called for the row `watched`.
        """
        given = []
        for row, steps in enumerate(reading.rows):
            ids = self._loud_ids if row and reading.is_loud else self._next_ids
            prompt_ids = [*self._context_ids, *ids[: self._in_prompt]]
            answer_ids, start = ids[self._in_prompt :], 1 - self._in_prompt
            end = start + sum(1 + num_right for num_right, _ in steps)
            drafts = scripted_drafts(answer_ids, steps, self._loud_ids, start)
            given.append(Given(prompt_ids, answer_ids[:end], drafts, len(answer_ids)))
        given[watched].on_commit = on_commit
        self._engine.generate(given)
        return [torch.stack([*row.logits]) for row in given[: 1 if reading.is_loud else None]]

    def first_module(self, *compared: tuple[_Reading, int]) -> str:
        """The first whose outputs differ between two readings, each in one of its rows."""
        mode = self._engine.exact
        if mode and mode.steps == "captured":
            return "the captured step"  # which runs no hooks
        one, other = (self._states(reading, row) for reading, row in compared)
        differing = (at for at, state in one.items() if _differ(state, other.get(at, state)))
        return next(differing, _NO_MODULE)

    def _states(self, reading: _Reading, row: int) -> dict[str, torch.Tensor]:
        """What goes into modules and comes out of them while the tokens of `row` are read.

        Returns `[tokens, …]` by place. Places where the row's part is unclear are left out.
        """
        states: dict[str, list[torch.Tensor]] = {}
        unclear: set[str] = set()
        latest: dict[str, list[torch.Tensor]] = {}
        start = 0

        def begin(*given: Any) -> None:
            nonlocal start
            start = attention.row_starts().get(row, 0)
            latest.clear()

        def note(place: str, *passed: Any) -> None:
            """A hook of a module gets its inputs last, or its output."""
            value = passed[-1][0] if isinstance(passed[-1], tuple) and passed[-1] else passed[-1]
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                latest.setdefault(place, []).append(value)

        def take(token_ids: list[int]) -> None:
            for place, values in latest.items():
                tokens = values[0][0] if values[0].dim() > 2 else values[0]
                end = start + len(token_ids)
                if len(values) > 1 or tokens.dim() != 2 or len(tokens) < end:
                    unclear.add(place)
                states.setdefault(place, []).append(tokens[start:end].clone())

        with ExitStack() as hooks:
            hooks.enter_context(self._model.register_forward_pre_hook(begin))
            for name, module in self._model.named_modules():
                before = f"{name.rpartition('.')[0]}, before {name}"
                hooks.enter_context(module.register_forward_pre_hook(partial(note, before)))
                hooks.enter_context(module.register_forward_hook(partial(note, name)))
            self.read(reading, take, row)
        return {place: torch.cat(rows) for place, rows in states.items() if place not in unclear}


def _largest_embedding(model: PreTrainedModel) -> int:
    """The token of the largest embedding: the least like those beside it."""
    embeddings: Any = model.get_input_embeddings()
    weight = embeddings.weight
    if weight.device.type == "meta" or not weight.is_floating_point():
        return 1
    return int(weight.detach().float().nan_to_num().norm(dim=-1).argmax())


def text_tokens(tokenizer: Any) -> list[int]:
    """Those of conversations that come with the package: prose, code and figures."""
    text = (tasks_dir() / "copyspec_quickstart" / "redundant.jsonl").read_text(encoding="utf-8")
    how = {"add_special_tokens": False, "truncation": True, "max_length": _TEXT_TOKENS}
    return list(tokenizer(text, **how)["input_ids"])
