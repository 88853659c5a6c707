"""The decoding loop: draft, forward, verify, commit, over a batch of rows that finish alone."""

from __future__ import annotations

from collections import abc, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.choosing import argmax_tokens
from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.exactness import exact_extent, ladder, most_padding, padded
from copyspec_eval.decoding.forced_text import KEY_BLOCK, PREFILL_CHUNK
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.serving import check_length, forward, input_device, served, step_parents
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.decoding.stopwatch import Stopwatch
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.drafters.registry import DrafterFactory
from copyspec_eval.drafters.thresholds import acceptance_thresholds
from copyspec_eval.types import Draft, ExactSteps, Generation

_EXTENT = 64
_WARM_UP_TOKENS = 4
_NO_DRAFT = Draft()

_Rows = list[Sequence | None]
"""What occupies each row of the cache."""


class Engine:
    """Decodes sequences with a model, `batch_size` side by side, refilling rows as they finish.

    Steps are padded to the next of a few widths. In exact mode these are `ExactSteps`, whose logits
    are the same bits; the batch keeps its size, the prefill carries no draft, and where masked keys
    matter, the sequences' longest lengths alone decide how many there are. So the outputs are the
    same bits for every drafter. Otherwise all widths are used, and batch and keys follow need.

    Args:
        model: a model that `serving.check_config` accepts.
        make_drafter: makes each sequence's drafter.
        num_draft_tokens: the longest draft that is verified; `exact` holds it.
        exact: the widths of exact mode, measured for this batch size; None decodes without it.
        batch_size: rows decoded side by side.
        step_costs: time of a step by its number of draft tokens, from which the acceptance
            thresholds follow. At a fixed width, and if None, draft tokens cost nothing.
        draft_model: drafts for the rows whose drafter proposes nothing.

    Attributes:
        batch_size, exact: as above.
        widths: in tokens, of the steps it takes; ascending.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        make_drafter: DrafterFactory,
        *,
        num_draft_tokens: int,
        exact: ExactSteps | None,
        batch_size: int = 1,
        step_costs: Mapping[int, float] | None = None,
        draft_model: DraftModel | None = None,
    ) -> None:
        self._model = model
        self._device = input_device(model)
        self._make_drafter = make_drafter
        self._num_draft_tokens = num_draft_tokens
        self.exact = exact
        self.batch_size = batch_size
        self.widths = step_widths(num_draft_tokens, exact)
        is_fixed = exact is not None and exact.kind == "fixed width"
        free = {0: 1.0, num_draft_tokens: 1.0}
        thresholds = acceptance_thresholds(free if is_fixed else step_costs or free)
        self._thresholds = thresholds[:num_draft_tokens]
        self._draft_model = draft_model
        self._clock = Stopwatch()

    def generate(
        self,
        sequences: abc.Sequence[Sequence],
        on_finish: Callable[[int, Generation], None] = lambda index, generation: None,
        beside: Iterable[Sequence] = (),
    ) -> list[Generation]:
        """Answer `sequences`, begun in the order given as rows become free.

        Args:
            sequences: what to answer; none of them has begun.
            on_finish: called with a sequence's index and its answer as soon as it is done; its own
                time counts for no sequence.
            beside: sequences of other calls, when they are answered in several: the longest of all
                fixes the keys attended to in exact mode.

        Returns:
            one answer per sequence, in their order.

        Raises:
            RequestError: as `check`; nothing is begun then.
        """
        if not sequences:
            return []
        self.check(sequences)
        self._set_extents(sequences, beside)
        index_of = {sequence: index for index, sequence in enumerate(sequences)}
        answers: dict[int, Generation] = {}
        cache = RowCache(self.batch_size, max(sequence.extent for sequence in sequences))
        with ExitStack() as stack:
            stack.enter_context(served(self._model, exact=self.exact is not None))
            if self._draft_model is not None:
                vocabulary = int(self._model.config.get_text_config().vocab_size)
                stack.enter_context(
                    self._draft_model.begin(cache.num_rows, cache.capacity, vocabulary)
                )
            self._clock.restart()
            for sequence in self._finished(sequences, cache):
                index = index_of[sequence]
                answers[index] = sequence.generation(self._clock.elapsed, self.batch_size)
                on_finish(index, answers[index])
                self._clock.restart()
        return [answers[index] for index in range(len(sequences))]

    def warm_up(self, sequence: Sequence) -> None:
        """Answer the beginning of `sequence` in a few tokens, so that nothing is cold afterwards.

        No drafter takes part, so that none remembers it.
        """
        engine = Engine(
            self._model,
            NoDrafter,
            num_draft_tokens=self._num_draft_tokens,
            exact=self.exact,
            batch_size=self.batch_size,
            draft_model=self._draft_model,
        )
        start = sequence.prompt_ids[:PREFILL_CHUNK]
        engine.generate([Sequence(start, StopRule(_WARM_UP_TOKENS), sequence.chooser)])
        with served(self._model, exact=self.exact is not None):
            warm_up_steps(self._model, self.batch_size, self.widths)

    @torch.inference_mode()
    def read(self, sequence: Sequence, output_ids: abc.Sequence[int], keep: int) -> torch.Tensor:
        """The logits of the widest steps, with `output_ids` as the output.

        In exact mode they are bit for bit those of a `generate` that gave this output.

        Args:
            sequence: whose prompt to read; `output_ids` is within its budget.
            output_ids: the output's tokens so far.
            keep: of how many last tokens, of the prompt's last one and the output, to return them.

        Returns:
            `[at most keep, vocabulary]`, float32; the last row chooses what follows `output_ids`.
        """
        widest, prompt_ids = self.widths[-1], sequence.prompt_ids
        cache = RowCache(self.batch_size, self._extent_of(sequence))
        with served(self._model, exact=self.exact is not None):
            for row in range(self.batch_size):
                logits = self._read_prompt(prompt_ids, row, cache)
            parts = deque([logits[0].float()], maxlen=keep // widest + 2)
            for start in range(0, len(output_ids), widest):
                chunk = list(output_ids[start : start + widest])
                width = padded(self.widths, len(chunk))
                step = self._ids([chunk + [0] * (width - len(chunk))])
                first = len(prompt_ids) + start
                extent = cache.capacity if self._fixes_extent else self._tight(first + width)
                logits = forward(
                    self._model, cache, 0, step.expand(self.batch_size, width), first, extent
                )
                parts.append(logits[0, : len(chunk)].float())
        return torch.cat(list(parts))[-keep:]

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Refuse sequences before any work.

        Raises:
            RequestError: one is too long for the model's rotary embedding.
        """
        for sequence in sequences:
            check_length(self._model, sequence.max_length + self._padding(self.widths))

    def _ids(self, rows: list[list[int]]) -> torch.Tensor:
        return torch.tensor(rows, device=self._device)

    @property
    def _fixes_extent(self) -> bool:
        """Whether a sequence attends to equally many keys, masked or not, from first to last."""
        return self.exact is not None and not self.exact.block_lengths

    def _tight(self, length: int) -> int:
        """The fewest keys that a step of positions under `length` attends to."""
        if self.exact is not None:
            return exact_extent(length, self.exact.block_lengths)
        return -(-length // _EXTENT) * _EXTENT

    def _extent_of(self, sequence: Sequence) -> int:
        """Cache positions that a sequence may need, padding included."""
        # The same for every length of drafts, where it matters.
        widths = self.exact.widths if self.exact else self.widths
        return self._tight(sequence.max_length + self._padding(widths))

    def _padding(self, widths: abc.Sequence[int]) -> int:
        """The most tokens that follow a row's own in a step."""
        # A neighbour's draft widens the step of a row that has none.
        return most_padding(widths) if self.batch_size == 1 else widths[-1] - 1

    def _set_extents(self, sequences: abc.Sequence[Sequence], beside: Iterable[Sequence]) -> None:
        # Alone, a sequence's keys are fixed by itself; in a batch, by the run.
        longest = max(map(self._extent_of, (*sequences, *beside)))
        shared = self._fixes_extent and self.batch_size > 1
        for sequence in sequences:
            sequence.extent = longest if shared else self._extent_of(sequence)

    def _finished(self, sequences: Iterable[Sequence], cache: RowCache) -> Iterator[Sequence]:
        """Decode `sequences`; each is given as soon as it is finished."""
        waiting = deque(sequences)
        rows: _Rows = [None] * cache.num_rows
        while True:
            yield from self._fill(rows, waiting, cache)
            if self.exact is None:
                self._compact(rows, cache)
            if not any(rows):
                return
            self._step(rows, cache)
            for row, sequence in enumerate(rows):
                if sequence is not None and sequence.finish_reason is not None:
                    rows[row] = None
                    yield sequence

    def _fill(self, rows: _Rows, waiting: deque[Sequence], cache: RowCache) -> Iterator[Sequence]:
        """Begin waiting sequences in the free rows; gives those that end with their prefill."""
        for row in range(len(rows)):
            while rows[row] is None and waiting:
                sequence = waiting.popleft()
                self._prefill(sequence, row, cache)
                if sequence.finish_reason is None:
                    rows[row] = sequence
                else:
                    yield sequence

    @torch.inference_mode()
    def _prefill(self, sequence: Sequence, row: int, cache: RowCache) -> None:
        sequence.start(self._make_drafter(), row, self._clock.elapsed)
        draft = _NO_DRAFT if self.exact else sequence.propose(self._thresholds)
        logits = self._read_prompt(sequence.prompt_ids, row, cache, draft)
        self._commit([sequence], [draft], logits, cache)
        sequence.prefill_seconds = self._clock.lap()

    @torch.inference_mode()
    def _step(self, rows: _Rows, cache: RowCache) -> None:
        """One forward for all rows; its time is shared evenly by those in use."""
        drafts = self._draft(rows)
        logits = self._forward(rows, drafts, cache)
        self._commit(rows, drafts, logits, cache)
        running = [sequence for sequence in rows if sequence is not None]
        share = self._clock.lap() / len(running)
        for sequence in running:
            sequence.decode_seconds += share

    def _draft(self, rows: _Rows) -> list[Draft]:
        """What each row verifies next: its drafter's draft, else the draft model's."""
        drafts = [
            sequence.propose(self._thresholds) if sequence else _NO_DRAFT for sequence in rows
        ]
        return drafts if self._draft_model is None else self._draft_model.propose(rows, drafts)

    def _forward(self, rows: _Rows, drafts: list[Draft], cache: RowCache) -> torch.Tensor:
        """Feed each row its last token and its draft; logits `[rows, width, vocabulary]`."""
        width = padded(self.widths, 1 + max(len(draft.token_ids) for draft in drafts))
        # One copy to the device: each row's first position, then its tokens.
        packed = torch.tensor(
            [
                [sequence.length - 1, *sequence.step_ids(draft, width)]
                if sequence
                else [0] * (1 + width)
                for sequence, draft in zip(rows, drafts, strict=True)
            ]
        ).to(self._device)
        running = [sequence for sequence in rows if sequence is not None]
        if self._fixes_extent:
            extent = max(sequence.extent for sequence in running)
        else:
            extent = self._tight(max(sequence.length for sequence in running) - 1 + width)
        parents = None
        if any(draft.parents for draft in drafts):
            parents = [step_parents(draft, 1, width) for draft in drafts]
        return forward(self._model, cache, 0, packed[:, 1:], packed[:, :1], extent, parents=parents)

    def _commit(
        self,
        rows: abc.Sequence[Sequence | None],
        drafts: list[Draft],
        logits: torch.Tensor,
        cache: RowCache,
    ) -> None:
        """Verify each row's draft and commit what the model accepts of it.

        Args:
            rows: the sequences whose drafts were verified.
            drafts: of each row.
            logits: `[rows, at least 1 + longest draft, vocabulary]`.
            cache: an accepted branch of a tree moves to where a chain's tokens are.
        """
        longest = max(len(draft.token_ids) for draft in drafts)
        greedy = any(sequence.chooser.is_argmax for sequence in rows if sequence)
        argmax = argmax_tokens(logits[:, : 1 + longest]) if greedy else [[]] * len(rows)
        for index, (sequence, draft) in enumerate(zip(rows, drafts, strict=True)):
            if sequence is None:
                continue
            first = sequence.length
            path = sequence.commit(
                draft, sequence.choices(draft, argmax[index], logits[index])
            ).path
            if path and path[-1] >= len(path):
                cache.move(sequence.row, [first + node for node in path], first)

    def _compact(self, rows: _Rows, cache: RowCache) -> None:
        """Move the last rows into the holes and drop the rest, once nothing waits for them."""
        while rows and not all(rows):
            last = rows.pop()
            if last is not None:
                hole = rows.index(None)
                cache.copy_row(last.row, hole)
                if self._draft_model is not None:
                    self._draft_model.copy_row(last.row, hole)
                rows[hole], last.row = last, hole

    def _read_prompt(
        self, prompt_ids: tuple[int, ...], row: int, cache: RowCache, draft: Draft = _NO_DRAFT
    ) -> torch.Tensor:
        """Put a prompt into a row of the cache, and a draft behind it.

        Returns:
            logits `[1, 1 + draft, vocabulary]`: after the prompt, and after each draft token.
        """
        ids = self._ids([[*prompt_ids, *draft.token_ids]])
        # The draft stays with the prompt's last chunk, uncut.
        last = (len(prompt_ids) - 1) // PREFILL_CHUNK * PREFILL_CHUNK
        for start in range(0, last, PREFILL_CHUNK):
            end = start + PREFILL_CHUNK
            forward(self._model, cache, row, ids[:, start:end], start, end, logits_to_keep=1)
        width = ids.shape[1] - last
        parents = [step_parents(draft, len(prompt_ids) - last, width)] if draft.parents else None
        return forward(
            self._model,
            cache,
            row,
            ids[:, last:],
            last,
            ids.shape[1],
            logits_to_keep=1 + len(draft.token_ids),
            parents=parents,
        )


def step_widths(num_draft_tokens: int, exact: ExactSteps | None) -> tuple[int, ...]:
    """The widths of an engine's steps, as far as drafts of that length need them."""
    widths = exact.widths if exact else ladder(1 + num_draft_tokens)
    widest = padded(widths, 1 + num_draft_tokens)
    return tuple(width for width in widths if width <= widest)


@torch.inference_mode()
def warm_up_steps(model: PreTrainedModel, batch_size: int, widths: Iterable[int]) -> None:
    """Take a step of each width, within `served`: a library prepares kernels for each shape."""
    cache = RowCache(batch_size, KEY_BLOCK + max(widths))
    for width in widths:
        ids = torch.zeros(batch_size, width, dtype=torch.long, device=input_device(model))
        forward(model, cache, 0, ids, 0, cache.capacity)
