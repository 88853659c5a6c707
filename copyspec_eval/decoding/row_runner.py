"""An engine's forwards with its own attention and cache: batches, exact mode, trees, prefixes."""

import itertools
from collections import abc
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel

from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.choosing import StepLogits
from copyspec_eval.decoding.forward import Part, forward, key_extent
from copyspec_eval.decoding.modules import engine_kernels
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.repeated_steps import Steps, capacity, steps_for
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.types import Draft, ExactMode, Verdict

PREFILL_CHUNK = 256
"""Prompt tokens per forward of a prefill at a fixed width, whatever the drafts."""
_LONG_CHUNK = 512
"""The same elsewhere: bounds the memory of a step."""
_REUSED_BLOCK = 16
"""Tokens of a block of the prefix cache, where chunks may begin anywhere."""


class RowRunner:
    """Makes the forwards of a batch's rows; later tokens overwrite rejected ones.

    Where our kernels serve the model, each row of a step has its own width; elsewhere all are as
    wide as the widest, with `padding` after a row's own tokens. At a fixed width every row of
    every step has that width and attends to equally many keys throughout. There a prefill carries
    no draft and its chunks begin at multiples of `PREFILL_CHUNK`, so only whole chunks of earlier
    prompts are reused; elsewhere any prompt or answer. Where steps are captured, so are chunks, in
    a cache of one row: a captured step belongs to the rows that it was captured with.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        num_draft_tokens: int,
        exact: ExactMode | None,
        batch_size: int,
        prefix_cache: PrefixCache | None,
    ) -> None:
        self._model = model
        self._exact = exact
        self._batch_size = batch_size
        self._prefix_cache = prefix_cache
        self._fixed_width = exact.width if exact else None
        self._is_captured = exact is not None and exact.steps == "captured"
        self._by_extent: dict[int, tuple[Steps, Steps]] = {}
        self._chunk = PREFILL_CHUNK if self._fixed_width else _LONG_CHUNK
        self.widest = self._fixed_width or 1 + num_draft_tokens
        self.packs = batch_size > 1 and not self._fixed_width and kernels.serve(model)
        is_padded = self._fixed_width or (batch_size > 1 and not self.packs)
        self.padding = self.widest - 1 if is_padded else 0

    @contextmanager
    def running(
        self, sequences: abc.Sequence[Sequence], others: Iterable[Sequence]
    ) -> Iterator[None]:
        """Prepare for `sequences`, whose `extent` it sets; `others` are those of other calls."""
        lengths = [each.max_length + self.padding for each in (*sequences, *others)]
        extents = [*map(capacity if self._is_captured else key_extent, lengths)]
        # Alone, a sequence fixes how many keys it attends to; in a batch, the run does.
        is_shared = self._fixed_width and self._batch_size > 1
        for sequence, extent in zip(sequences, extents, strict=False):
            sequence.extent = max(extents) if is_shared else extent
        try:
            with engine_kernels(self._model, exact=self._exact is not None) as state:
                self._by_extent = self._prepared(sequences, state)
                if self._prefix_cache is not None:
                    computed_by = self._model, state[0], self._exact
                    block_length = PREFILL_CHUNK if self._fixed_width else _REUSED_BLOCK
                    self._prefix_cache.begin(computed_by, block_length)
                yield
        finally:
            self._by_extent = {}

    def _prepared(
        self, sequences: abc.Sequence[Sequence], state: Hashable
    ) -> dict[int, tuple[Steps, Steps]]:
        """The steps of sequences by their extents, and those that read their prompts."""
        extents = {each.extent for each in sequences}
        room = {each: capacity(each) if self._fixed_width else max(extents) for each in extents}
        all_rows, prompt_rows = self._batch_size, 1 if self._is_captured else self._batch_size
        kinds = itertools.product({all_rows, prompt_rows}, {*room.values()})
        made = {kind: steps_for(self._model, state, *kind, self._exact) for kind in kinds}
        for each in sequences if self._is_captured else ():
            made[all_rows, each.extent].capture(self._model, self.widest, each.extent)
            for start in range(0, len(each.prompt_ids), PREFILL_CHUNK):
                prompts = made[prompt_rows, each.extent]
                prompts.capture(self._model, PREFILL_CHUNK, capacity(start + PREFILL_CHUNK))
        return {each: (made[all_rows, n], made[prompt_rows, n]) for each, n in room.items()}

    def load(self, sequence: Sequence) -> None:
        self._steps, self._prompts = self._by_extent[sequence.extent]
        if self._prefix_cache is not None:
            # The last token is read in any case, for the logits after it.
            place = self._prompts.cache, 0 if self._is_captured else sequence.row
            sequence.num_reused_tokens = self._prefix_cache.load(sequence.prompt_ids[:-1], *place)

    def read(self, sequences: abc.Sequence[Sequence], drafts: abc.Sequence[Draft]) -> StepLogits:
        """Read the prompt of one sequence into its row, or of several that fit in a step."""
        if len(sequences) > 1:
            step = self._feed(sequences, drafts, width=None)
        elif self._is_captured:
            step = self._read_captured(sequences[0])
        else:
            step = self._read_in_chunks(sequences[0], drafts[0])
        for sequence in sequences:
            self._keep(sequence)
        return step

    def _read_in_chunks(self, sequence: Sequence, draft: Draft) -> StepLogits:
        """Read a prompt; the last chunk verifies the draft."""
        row, prompt_ids = sequence.row, sequence.prompt_ids
        *starts, last = range(sequence.num_reused_tokens, len(prompt_ids), self._chunk)
        for start in starts:
            chunk = Part(row, start, prompt_ids[start : start + self._chunk])
            forward(self._model, self._steps.cache, [chunk], logits_to_keep=1)
        ids = [*prompt_ids[last:], *draft.token_ids]
        part = Part(row, last, ids, draft.parents, len(prompt_ids) - last)
        keep = 1 + len(draft.token_ids)
        logits = forward(self._model, self._steps.cache, [part], logits_to_keep=keep)
        return StepLogits(logits, [slice(keep)])

    def _read_captured(self, sequence: Sequence) -> StepLogits:
        """Read a prompt in whole chunks, the last one padded: there is one kind of them."""
        length = len(sequence.prompt_ids)
        for start in range(sequence.num_reused_tokens, length, PREFILL_CHUNK):
            ids = sequence.prompt_ids[start : start + PREFILL_CHUNK]
            chunk = Part(0, start, [*ids, *ids[-1:] * (PREFILL_CHUNK - len(ids))])
            # By its place alone, since a later prompt may go on from it.
            extent = capacity(start + PREFILL_CHUNK)
            logits, _ = self._prompts.read(self._model, [chunk], extent)
        if self._prompts is not self._steps:
            self._steps.cache.take(sequence.row, self._prompts.cache, length)
        return StepLogits(logits[len(ids) - 1 : len(ids)], [slice(1)])

    def can_draft(self, sequence: Sequence) -> bool:
        return not self._fixed_width or sequence.num_forwards > 0

    def step(self, rows: abc.Sequence[Sequence | None], drafts: abc.Sequence[Draft]) -> StepLogits:
        longest = 1 + max(len(draft.token_ids) for draft in drafts)
        return self._feed(rows, drafts, None if self.packs else self._fixed_width or longest)

    def _feed(
        self, rows: abc.Sequence[Sequence | None], drafts: abc.Sequence[Draft], width: int | None
    ) -> StepLogits:
        """Feed rows their unread tokens and drafts: `width` each, or if None what they have."""
        idle_token = next(sequence.unread_ids[-1] for sequence in rows if sequence)
        parts: list[Part] = []
        places: list[slice] = []
        end = 0
        for row, (sequence, draft) in enumerate(zip(rows, drafts, strict=True)):
            unread_ids = sequence.unread_ids if sequence else [idle_token]
            token_ids = [*unread_ids, *draft.token_ids]
            first = end + len(unread_ids) - 1
            places.append(slice(first, end + len(token_ids)))
            # Padding is a token like any other: the embedding of id 0 may hold anything.
            token_ids += token_ids[-1:] * ((width or 0) - len(token_ids))
            end += len(token_ids)
            row = sequence.row if sequence else row
            start = sequence.length - len(unread_ids) if sequence else 0
            parts.append(Part(row, start, token_ids, draft.parents, len(unread_ids)))
        extent = max(each.extent for each in rows if each) if self._fixed_width else None
        logits, is_usual = self._steps.read(self._model, parts, extent)
        return StepLogits(logits, places, is_usual)

    def accept(self, sequence: Sequence, start: int, draft: Draft, verdict: Verdict) -> None:
        """Move an accepted branch of a tree to where a chain's tokens are, from `start` on."""
        path = verdict.path
        if path and path[-1] >= len(path):
            self._steps.cache.move(sequence.row, [start + node for node in path], start)

    def finish(self, sequence: Sequence) -> None:
        """Keep the answer, too, where a prompt may be read on from it."""
        if not self._fixed_width:
            self._keep(sequence)

    def _keep(self, sequence: Sequence) -> None:
        """Keep what was read of a sequence: all but the last token of its output."""
        if self._prefix_cache is not None:
            read_ids = [*sequence.prompt_ids, *sequence.output_ids[:-1]]
            self._prefix_cache.keep(read_ids, self._steps.cache, sequence.row)
