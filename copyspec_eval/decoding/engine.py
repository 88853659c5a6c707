"""The one loop: draft, forward, verify, commit, over a batch of rows that finish on their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.choosing import TokenChooser, argmax_tokens
from copyspec_eval.decoding.draft_model import Asked, DraftModel
from copyspec_eval.decoding.row import Row
from copyspec_eval.decoding.serving import check_length, forward, served
from copyspec_eval.decoding.slots import Slot, Stopwatch, fed, step_parents
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.drafters.prices import prices
from copyspec_eval.drafters.registry import DrafterFactory
from copyspec_eval.errors import OptionError
from copyspec_eval.types import EXACT_WIDTHS, Draft, Generation

PREFILL_CHUNK = 512
"""Prompt tokens per forward of a prefill: bounds its mask, and never depends on a draft."""

_EXACT_EXTENT, _EXTENT = 512, 64
_WARM_UP_TOKENS = 4
_NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to answer: its token ids, when to stop, and how the model chooses a token.

    It can be answered several times; the chooser starts anew each time.
    """

    prompt_ids: tuple[int, ...]
    stop_rule: StopRule
    chooser: TokenChooser

    @property
    def max_length(self) -> int:
        """Prompt and whole budget, in tokens."""
        return len(self.prompt_ids) + self.stop_rule.max_new_tokens


def exact_width(num_draft_tokens: int) -> int:
    """The fixed step width in tokens that holds a draft and the token before it.

    Raises:
        OptionError: no exact width is that wide.
    """
    for width in EXACT_WIDTHS:
        if num_draft_tokens < width:
            return width
    raise OptionError(
        f"num_draft_tokens={num_draft_tokens} is over {EXACT_WIDTHS[-1] - 1}, the most that exact "
        "mode verifies in a step; pass a smaller one or exact=false"
    )


class Engine:
    """Decodes requests with a model, `batch_size` side by side, refilling each row as it finishes.

    Exact mode: every step is `exact_width` tokens wide whether or not anything was drafted, the
    batch keeps its size, the keys attended to are fixed by the requests alone, and the prefill
    carries no draft. All kernels then see the same shapes for every drafter, so that the outputs
    are the same bits. Otherwise the width, the batch and the keys follow what is needed.

    Args:
        model: a model that `serving.check_config` accepts.
        make_drafter: makes each request's drafter.
        num_draft_tokens: the longest draft that is verified.
        exact: see above.
        batch_size: rows decoded side by side.
        step_costs: time of a step by its number of draft tokens, as `prices` takes it; drafters
            draft what is worth it. In exact mode, and if None, a token costs nothing.
        draft_model: drafts for the rows whose drafter has no draft.

    Attributes:
        batch_size: as above.
        widest: tokens of the widest step.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        make_drafter: DrafterFactory,
        *,
        num_draft_tokens: int,
        exact: bool = True,
        batch_size: int = 1,
        step_costs: Mapping[int, float] | None = None,
        draft_model: DraftModel | None = None,
    ) -> None:
        self._model = model
        self._make_drafter = make_drafter
        self._num_draft_tokens = num_draft_tokens
        self._exact = exact
        self.batch_size = batch_size
        self._width = exact_width(num_draft_tokens) if exact else None
        self.widest = self._width or 1 + num_draft_tokens
        free = {0: 1.0, num_draft_tokens: 1.0}
        self._prices = prices(free if exact or step_costs is None else step_costs)
        self._draft_model = draft_model
        self._clock = Stopwatch()

    def generate(
        self,
        requests: Sequence[Request],
        on_finish: Callable[[int, Generation], None] = lambda index, generation: None,
        beside: Sequence[Request] = (),
    ) -> list[Generation]:
        """Answer `requests`, begun in the order given as rows become free.

        Args:
            requests: what to answer.
            on_finish: called with a request's index and its answer as soon as it is done; its own
                time counts for no request.
            beside: requests of other calls, when they are answered in several: the longest of all
                fixes the keys attended to in exact mode.

        Returns:
            one answer per request, in their order.

        Raises:
            RequestError: as `check`; nothing is begun then.
        """
        if not requests:
            return []
        self.check(requests)
        answers: dict[int, Generation] = {}
        queue = deque(enumerate(requests))
        # Alone, a request's keys are fixed by itself; beside others, by the run.
        alone = self.batch_size == 1 or not self._exact
        run = requests if alone else (*requests, *beside)
        extent = max(self._extent_of(request) for request in run)
        cache = RowCache(self.batch_size, extent)
        slots: list[Slot | None] = [None] * self.batch_size

        def finish(slot: Slot) -> None:
            answers[slot.index] = slot.generation(self._clock.elapsed, self.batch_size)
            on_finish(slot.index, answers[slot.index])
            self._clock.restart()

        with ExitStack() as stack:
            stack.enter_context(served(self._model, self._exact))
            if self._draft_model is not None:
                stack.enter_context(self._draft_model.begin(self.batch_size, extent))
            self._clock.restart()
            while True:
                self._fill(slots, queue, cache, extent, finish)
                if not self._exact:
                    self._compact(slots, cache)
                if not any(slots):
                    break
                self._step(slots, cache)
                for place, slot in enumerate(slots):
                    if slot is not None and slot.row.finish_reason is not None:
                        slots[place] = None
                        finish(slot)
        return [answers[index] for index in range(len(requests))]

    def warm_up(self, request: Request) -> None:
        """Answer the beginning of `request` in a few tokens, so that nothing is cold afterwards.

        No drafter takes part, so that none remembers it.
        """
        start = request.prompt_ids[:PREFILL_CHUNK]
        plain = Engine(
            self._model,
            NoDrafter,
            num_draft_tokens=self._num_draft_tokens,
            exact=self._exact,
            batch_size=self.batch_size,
            draft_model=self._draft_model,
        )
        plain.generate([Request(start, StopRule(_WARM_UP_TOKENS), request.chooser)])

    @torch.inference_mode()
    def read(self, request: Request, output_ids: Sequence[int], keep: int) -> torch.Tensor:
        """The logits of steps as wide as they come, with `output_ids` as the answer.

        In exact mode they are bit for bit those that `generate` saw, had it given that answer.

        Args:
            request: whose prompt to read; `output_ids` is within its budget.
            output_ids: the answer's tokens so far.
            keep: of how many last tokens, of the prompt's last one and the output, to return them.

        Returns:
            `[at most keep, vocabulary]`, float32; the last row chooses what follows `output_ids`.
        """
        width, place = self.widest, len(request.prompt_ids)
        cache = RowCache(self.batch_size, self._extent_of(request))
        with served(self._model, self._exact):
            for row in range(self.batch_size):
                logits = self._read_prompt(row, request, cache)
            parts = deque([logits[0].float()], maxlen=keep // width + 2)
            for start in range(0, len(output_ids), width):
                chunk = list(output_ids[start : start + width])
                step = torch.tensor([chunk + [0] * (width - len(chunk))], device=self._model.device)
                first, end = place + start, place + start + width
                extent = self._extent_of(request) if self._exact else _round_up(end, _EXTENT)
                logits = forward(
                    self._model, cache, 0, step.expand(self.batch_size, width), first, extent
                )
                parts.append(logits[0, : len(chunk)].float())
        return torch.cat(list(parts))[-keep:]

    def check(self, requests: Sequence[Request]) -> None:
        """Refuse requests before any work.

        Raises:
            RequestError: one is too long for the model's rotary embedding.
        """
        for request in requests:
            check_length(self._model, request.max_length + self.widest - 1)

    def _extent_of(self, request: Request) -> int:
        """Cache positions that a request can come to need, its widest last step included."""
        unit = _EXACT_EXTENT if self._exact else _EXTENT
        return _round_up(request.max_length + self.widest, unit)

    def _fill(
        self,
        slots: list[Slot | None],
        queue: deque[tuple[int, Request]],
        cache: RowCache,
        extent: int,
        finish: Callable[[Slot], None],
    ) -> None:
        """Put waiting requests into free rows; one that ends with its first token is done."""
        for place in range(len(slots)):
            while slots[place] is None and queue:
                index, request = queue.popleft()
                own_extent = self._extent_of(request) if self.batch_size == 1 else extent
                slot = self._prefill(place, index, request, cache, own_extent)
                if slot.row.finish_reason is None:
                    slots[place] = slot
                else:
                    finish(slot)

    @torch.inference_mode()
    def _prefill(
        self, place: int, index: int, request: Request, cache: RowCache, extent: int
    ) -> Slot:
        started = self._clock.elapsed
        if self._draft_model is not None:
            self._draft_model.clear_row(place)
        request.chooser.restart()
        row = Row(
            request.prompt_ids,
            self._make_drafter(),
            request.stop_rule.max_new_tokens,
            request.stop_rule.reason,
        )
        draft = Draft() if self._exact else row.propose(self._prices)
        logits = self._read_prompt(place, request, cache, draft)
        slot = Slot(index, row, request.chooser, extent, started)
        argmax = argmax_tokens(logits)[0]
        self._settle(slot, place, draft, argmax, logits[0], cache)
        slot.prefill_seconds = self._clock.lap()
        return slot

    def _read_prompt(
        self, place: int, request: Request, cache: RowCache, draft: Draft = _NO_DRAFT
    ) -> torch.Tensor:
        """Put a prompt into a row of the cache, and a draft behind it.

        Returns:
            logits `[1, 1 + draft, vocabulary]`: after the prompt, and after each draft token.
        """
        prompt_ids = request.prompt_ids
        ids = torch.tensor([[*prompt_ids, *draft.token_ids]], device=self._model.device)
        # The draft goes with the prompt's last chunk, whole.
        last = (len(prompt_ids) - 1) // PREFILL_CHUNK * PREFILL_CHUNK
        for start in range(0, last, PREFILL_CHUNK):
            end = start + PREFILL_CHUNK
            forward(self._model, cache, place, ids[:, start:end], start, end, logits_to_keep=1)
        width = ids.shape[1] - last
        branched = [step_parents(draft, len(prompt_ids) - last, width)] if draft.parents else None
        return forward(
            self._model,
            cache,
            place,
            ids[:, last:],
            last,
            ids.shape[1],
            logits_to_keep=1 + len(draft.token_ids),
            parents=branched,
        )

    @torch.inference_mode()
    def _step(self, slots: list[Slot | None], cache: RowCache) -> None:
        """One forward for all rows, and what each row makes of it."""
        drafts = self._drafts(slots)
        longest = max(len(draft.token_ids) for draft in drafts)
        width = self._width or 1 + longest
        # One copy to the device: each row's first position, then its tokens.
        packed = torch.tensor(
            [fed(slot, draft, width) for slot, draft in zip(slots, drafts, strict=True)]
        ).to(self._model.device)
        active = [slot for slot in slots if slot is not None]
        extent = self._step_extent(active, width)
        parents = None
        if any(draft.parents for draft in drafts):
            parents = [step_parents(draft, 1, width) for draft in drafts]
        logits = forward(
            self._model, cache, 0, packed[:, 1:], packed[:, :1], extent, parents=parents
        )
        plain = any(slot.chooser.is_argmax for slot in active)
        tokens = argmax_tokens(logits[:, : 1 + longest]) if plain else [[]] * len(slots)
        for place, (slot, draft) in enumerate(zip(slots, drafts, strict=True)):
            if slot is not None:
                self._settle(slot, place, draft, tokens[place], logits[place], cache)
        share = self._clock.lap() / len(active)
        for slot in active:
            slot.decode_seconds += share

    def _step_extent(self, active: list[Slot], width: int) -> int:
        if self._exact:
            return max(slot.extent for slot in active)
        return _round_up(max(slot.row.length for slot in active) - 1 + width, _EXTENT)

    def _drafts(self, slots: list[Slot | None]) -> list[Draft]:
        """What each row verifies next: its drafter's draft, else the draft model's."""
        drafts = [slot.row.propose(self._prices) if slot else Draft() for slot in slots]
        if self._draft_model is None:
            return drafts
        asked = [
            Asked(slot.row.text, slot.chooser, slot.row.budget)
            if slot and slot.row.budget and not draft.token_ids
            else None
            for slot, draft in zip(slots, drafts, strict=True)
        ]
        said = self._draft_model.propose(asked)
        return [
            draft if draft.token_ids else other for draft, other in zip(drafts, said, strict=True)
        ]

    def _compact(self, slots: list[Slot | None], cache: RowCache) -> None:
        """Move the last rows into the holes and drop the rest, once nothing waits for them."""
        while slots and not all(slots):
            last = slots.pop()
            if last is not None:
                hole = slots.index(None)
                cache.copy_row(source=len(slots), target=hole)
                if self._draft_model is not None:
                    self._draft_model.copy_row(source=len(slots), target=hole)
                slots[hole] = last

    def _settle(
        self,
        slot: Slot,
        place: int,
        draft: Draft,
        argmax: list[int],
        logits: torch.Tensor,
        cache: RowCache,
    ) -> None:
        """Take what the model makes of a draft; an accepted branch moves to where a chain is."""
        first = slot.row.length
        path = slot.row.settle(draft, slot.choices(draft, argmax, logits)).path
        if path and path[-1] >= len(path):
            cache.move(place, [first + node for node in path], first)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
