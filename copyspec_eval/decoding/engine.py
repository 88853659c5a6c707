"""The decoding loop: draft, forward, verify, commit, over a batch of rows that finish alone."""

from collections import abc, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.choosing import StepLogits, argmax_tokens
from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.model_cache import ModelCacheRunner
from copyspec_eval.decoding.model_support import check_length
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.row_runner import PREFILL_CHUNK, RowRunner
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.decoding.stopwatch import Stopwatch
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.drafters.registry import DrafterFactory
from copyspec_eval.drafters.thresholds import StepClock
from copyspec_eval.types import CacheKind, Draft, ExactMode, Generation

_WARM_UP_TOKENS = 4
Rows = list[Sequence | None]  # what occupies each row of the cache


class Engine:
    """Decodes sequences with a model, `batch_size` side by side, refilling rows as they finish.

    In exact mode the outputs are the same bits for every drafter: every token is computed alone;
    or, at a fixed width, shapes do not depend on drafts. There a prefill carries no draft, the
    batch keeps its size, and the longest sequence decides how many keys are attended to.

    Args:
        num_draft_tokens: the longest draft that is verified; `exact` holds it.
        exact: the exact mode, checked for this batch size; None decodes without it.
        step_clock: knows what a draft token costs, from which the acceptance threshold follows;
            if None, as at a fixed width, draft tokens cost nothing.
        draft_model: drafts for the rows whose drafter proposes nothing.
        prefix_cache: for this engine alone; None to read every prompt anew.
        cache: "copyspec", or the model's for a batch of one without exact mode, trees, prefixes.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        make_drafter: DrafterFactory,
        *,
        num_draft_tokens: int,
        exact: ExactMode | None,
        batch_size: int = 1,
        step_clock: StepClock | None = None,
        draft_model: DraftModel | None = None,
        prefix_cache: PrefixCache | None = None,
        cache: CacheKind = "copyspec",
    ) -> None:
        if cache == "copyspec":
            self._runner: RowRunner | ModelCacheRunner = RowRunner(
                model, num_draft_tokens, exact, batch_size, prefix_cache
            )
        else:
            assert (exact, batch_size, prefix_cache) == (None, 1, None)
            self._runner = ModelCacheRunner(model, num_draft_tokens)
        self._model = model
        self._make_drafter = make_drafter
        self._num_draft_tokens = num_draft_tokens
        self.exact = exact
        self.batch_size = batch_size
        self.cache: CacheKind = cache
        self.widest, self.packs = self._runner.widest, self._runner.packs
        is_fixed = exact is not None and exact.width is not None
        self._step_clock = StepClock(0.0) if is_fixed or step_clock is None else step_clock
        self._draft_model = draft_model
        self._clock = Stopwatch()

    def generate(
        self,
        sequences: abc.Sequence[Sequence],
        on_finish: Callable[[int, Generation], None] = lambda index, generation: None,
        others: Iterable[Sequence] = (),
    ) -> list[Generation]:
        """Answer `sequences`, begun in the order given as rows become free.

        Args:
            sequences: none of them has begun.
            on_finish: gets a sequence's index and answer when it is done; its time is not counted.
            others: sequences of the run; at a fixed width, the longest of all fixes the keys.

        Raises:
            RequestError: as `check`; nothing is begun then.
        """
        if not sequences:
            return []
        self.check(sequences)
        index_of = {sequence: index for index, sequence in enumerate(sequences)}
        answers: dict[int, Generation] = {}
        with ExitStack() as stack:
            stack.enter_context(self._runner.running(sequences, others))
            if self._draft_model is not None:
                capacity = max(sequence.max_length for sequence in sequences)
                vocabulary = int(self._model.config.get_text_config().vocab_size)
                stack.enter_context(self._draft_model.begin(self.batch_size, capacity, vocabulary))
            self._clock.restart()
            for sequence in self._finished(sequences):
                index = index_of[sequence]
                answers[index] = sequence.generation(self._clock.elapsed, self.batch_size)
                on_finish(index, answers[index])
                self._clock.restart()
        return [answers[index] for index in range(len(sequences))]

    def warm_up(self, sequence: Sequence) -> None:
        """Answer the beginning of `sequence` in a few tokens; no drafter sees them."""
        engine = self.without_drafter(self._num_draft_tokens, draft_model=self._draft_model)
        start = sequence.prompt_ids[:PREFILL_CHUNK]
        engine.generate([Sequence(start, StopRule(_WARM_UP_TOKENS), sequence.chooser)])

    def without_drafter(
        self,
        num_draft_tokens: int,
        prefix_cache: PrefixCache | None = None,
        draft_model: DraftModel | None = None,
    ) -> "Engine":
        """Another engine with the same exact mode, batch size and cache."""
        return Engine(
            self._model,
            NoDrafter,
            num_draft_tokens=num_draft_tokens,
            exact=self.exact,
            batch_size=self.batch_size,
            draft_model=draft_model,
            prefix_cache=prefix_cache,
            cache=self.cache,
        )

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Raise a RequestError if a sequence is too long for the model's rotary embedding."""
        for sequence in sequences:
            check_length(self._model, sequence.max_length + self._runner.padding)

    def _finished(self, sequences: Iterable[Sequence]) -> Iterator[Sequence]:
        """Decode `sequences`, yielding each as soon as it is finished."""
        waiting = deque(sequences)
        rows: Rows = [None] * self.batch_size
        while True:
            yield from self._fill(rows, waiting)
            if not any(rows):
                return
            # Elsewhere idle rows are fed as well, so that the batch stays one block.
            self._step([each for each in rows if each] if self.packs else rows)
            for row, sequence in enumerate(rows):
                if sequence is not None and sequence.finish_reason is not None:
                    rows[row] = None
                    self._runner.finish(sequence)
                    # The prefix cache is filled: a cost of this engine, whose later prefills gain.
                    sequence.decode_seconds += self._clock.lap()
                    yield sequence

    def _fill(self, rows: Rows, waiting: deque[Sequence]) -> Iterator[Sequence]:
        """Begin waiting sequences in the free rows; yields those that end with their prefill."""
        while waiting and not all(rows):
            free = [row for row, sequence in enumerate(rows) if sequence is None]
            begun = {row: waiting.popleft() for row in free[: len(waiting)]}
            self._begin(begun)
            for row, sequence in begun.items():
                if sequence.finish_reason is None:
                    rows[row] = sequence
                else:
                    yield sequence

    @torch.inference_mode()
    def _begin(self, begun: Mapping[int, Sequence]) -> None:
        together: list[Sequence] = []
        drafts: list[Draft] = []
        limits = self._num_draft_tokens, self._step_clock.threshold(self.batch_size)
        for row, sequence in begun.items():
            sequence.start(self._make_drafter(), row, self._clock.elapsed)
            draft = sequence.propose(*limits) if self._runner.can_draft(sequence) else Draft()
            self._runner.load(sequence)
            num_tokens = len(sequence.unread_ids) + len(draft.token_ids)
            if self.packs and len(begun) > 1 and num_tokens <= self.widest:
                together.append(sequence)
                drafts.append(draft)
            else:
                self._read([sequence], [draft])
        if together:
            self._read(together, drafts)

    def _read(self, sequences: abc.Sequence[Sequence], drafts: abc.Sequence[Draft]) -> None:
        """Read one prompt, or several in one forward whose time is shared evenly."""
        self._commit(sequences, drafts, self._runner.read(sequences, drafts))
        seconds = self._clock.lap() / len(sequences)
        for sequence in sequences:
            sequence.prefill_seconds = seconds

    @torch.inference_mode()
    def _step(self, rows: Rows) -> None:
        running = [sequence for sequence in rows if sequence is not None]
        limits = self._num_draft_tokens, self._step_clock.threshold(len(running))
        drafting = [row if row and self._runner.can_draft(row) else None for row in rows]
        drafts = [row.propose(*limits) if row else Draft() for row in drafting]
        if self._draft_model is not None:
            drafts = self._draft_model.propose(drafting, drafts)
        drafting_seconds = self._clock.lap()
        step = self._runner.step(rows, drafts)
        self._commit(rows, drafts, step)
        seconds = self._clock.lap()
        if step.is_usual:
            self._step_clock.add(len(rows), len(step.logits) - len(rows), seconds)
        for sequence in running:
            sequence.decode_seconds += (drafting_seconds + seconds) / len(running)

    def _commit(
        self, rows: abc.Sequence[Sequence | None], drafts: abc.Sequence[Draft], step: StepLogits
    ) -> None:
        greedy = any(sequence.chooser.is_argmax for sequence in rows if sequence)
        argmax = argmax_tokens(step.logits, step.parts) if greedy else [[]] * len(rows)
        for index, (sequence, draft) in enumerate(zip(rows, drafts, strict=True)):
            if sequence is None:
                continue
            start = sequence.length
            choose = sequence.choices(draft, argmax[index], step.logits[step.parts[index]])
            verdict = sequence.commit(draft, choose)
            self._runner.accept(sequence, start, draft, verdict)
