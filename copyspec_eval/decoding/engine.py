"""The decoding loop: draft, forward, verify, commit, over a batch of rows that finish alone."""

from __future__ import annotations

from collections import abc, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.choosing import TopTokens, top_tokens
from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.forced_text import PREFILL_CHUNK
from copyspec_eval.decoding.forward import forward
from copyspec_eval.decoding.prefill import Prefill
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.serving import check_length, input_device, served, weights_state
from copyspec_eval.decoding.steps import Prompt, Rows, StepLogits, Steps
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.decoding.stopwatch import Stopwatch
from copyspec_eval.decoding.widths import padded
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.drafters.registry import DrafterFactory
from copyspec_eval.drafters.thresholds import acceptance_thresholds, draft_prices, share
from copyspec_eval.types import Draft, ExactSteps, Generation

_WARM_UP_TOKENS = 4
_NO_DRAFT = Draft()


class Engine:
    """Decodes sequences with a model, `batch_size` side by side, refilling rows as they finish.

    Steps are padded to the next of a few widths. In exact mode these are `ExactSteps`, whose logits
    are the same bits; a prefill carries no draft, the batch keeps its size where smaller ones
    were not measured, and where masked keys matter, the sequences' longest lengths alone decide how
    many there are. So the outputs are the same bits for every drafter. Otherwise all widths are
    used, and batch and keys follow need.

    Args:
        model: a model that `serving.check_config` accepts.
        make_drafter: makes each sequence's drafter.
        num_draft_tokens: the longest draft that is verified; `exact` holds it.
        exact: the widths of exact mode, measured for this batch size; None decodes without it.
        batch_size: rows decoded side by side.
        step_costs: time of a step by its number of draft tokens, from which the acceptance
            thresholds follow. At a fixed width, and if None, draft tokens cost nothing.
        draft_model: drafts for the rows whose drafter proposes nothing.
        prefix_cache: what was read before; nothing is kept if None. It is this engine's alone.

    Attributes:
        batch_size, exact: as above.
        widths: in tokens, of a row's part of a step; ascending.
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
        prefix_cache: PrefixCache | None = None,
    ) -> None:
        self._model = model
        self._make_drafter = make_drafter
        self._num_draft_tokens = num_draft_tokens
        self.exact = exact
        self.batch_size = batch_size
        self._steps = Steps(model, num_draft_tokens, exact, batch_size)
        self.widths = self._steps.widths
        is_fixed = exact is not None and exact.kind == "fixed width"
        costs = None if is_fixed else step_costs
        free = {0: 1.0, num_draft_tokens: 1.0}
        self._thresholds = acceptance_thresholds(costs or free)[:num_draft_tokens]
        most = batch_size * num_draft_tokens
        self._prices = draft_prices(costs or {0: 1.0, most: 1.0})
        self._draft_model = draft_model
        self._prefill = Prefill(exact)
        self._prefix_cache = prefix_cache
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
        if self._prefix_cache is not None:
            computed_by = weights_state(self._model), self.exact
            self._prefix_cache.begin(computed_by, self._prefill.block_length)
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
            self._steps.warm_up()

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
        steps, prompt_ids = self._steps, sequence.prompt_ids
        widest = self.widths[-1]
        cache = RowCache(self.batch_size, steps.extent_of(sequence.max_length))
        with served(self._model, exact=self.exact is not None):
            for row in range(self.batch_size):
                logits = self._prefill.read(self._model, cache, row, prompt_ids)
            parts = deque([logits[0].float()], maxlen=keep // widest + 2)
            for start in range(0, len(output_ids), widest):
                chunk = list(output_ids[start : start + widest])
                width = padded(self.widths, len(chunk))
                step = torch.tensor([chunk + [0] * (width - len(chunk))])
                step = step.to(input_device(self._model))
                first = len(prompt_ids) + start
                extent = cache.capacity if steps.fixes_extent else steps.tight(first + width)
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
            check_length(self._model, sequence.max_length + self._steps.padding)

    def _set_extents(self, sequences: abc.Sequence[Sequence], beside: Iterable[Sequence]) -> None:
        # Alone, a sequence's keys are fixed by itself; in a batch, by the run.
        extent_of = self._steps.extent_of
        longest = max(extent_of(sequence.max_length) for sequence in (*sequences, *beside))
        shared = self._steps.fixes_extent and self.batch_size > 1
        for sequence in sequences:
            sequence.extent = longest if shared else extent_of(sequence.max_length)

    def _finished(self, sequences: Iterable[Sequence], cache: RowCache) -> Iterator[Sequence]:
        """Decode `sequences`; each is given as soon as it is finished."""
        waiting = deque(sequences)
        rows: Rows = [None] * cache.num_rows
        while True:
            yield from self._fill(rows, waiting, cache)
            if self.exact is None or self._steps.totals:
                self._compact(rows, cache)
            if not any(rows):
                return
            self._step(rows, cache)
            for row, sequence in enumerate(rows):
                if sequence is not None and sequence.finish_reason is not None:
                    rows[row] = None
                    if self._prefill.resumes_answers:
                        self._keep(sequence, cache)
                    yield sequence

    def _fill(self, rows: Rows, waiting: deque[Sequence], cache: RowCache) -> Iterator[Sequence]:
        """Begin waiting sequences in the free rows; gives those that end with their prefill."""
        while waiting and not all(rows):
            free = [row for row, sequence in enumerate(rows) if sequence is None]
            begun = {row: waiting.popleft() for row in free[: len(waiting)]}
            self._begin(begun, cache)
            for row, sequence in begun.items():
                if sequence.finish_reason is None:
                    rows[row] = sequence
                else:
                    yield sequence

    @torch.inference_mode()
    def _begin(self, begun: Mapping[int, Sequence], cache: RowCache) -> None:
        """Read sequences' prompts into their rows, and choose their first tokens.

        What is left of several prompts is read together where it is no more than a step.
        """
        together: list[Prompt] = []
        for row, sequence in begun.items():
            if self._prefix_cache is not None:
                # The last token is read in any case, for the logits after it.
                prompt_ids = sequence.prompt_ids[:-1]
                sequence.num_reused_tokens = self._prefix_cache.load(prompt_ids, cache, row)
            sequence.start(self._make_drafter(), row, self._clock.elapsed)
            draft = _NO_DRAFT if self.exact else sequence.propose(self._thresholds)
            prompt = Prompt(sequence, draft)
            if len(begun) == 1 or not self._prefill.resumes_answers or not self._steps.hold(prompt):
                self._read([prompt], cache)
            elif self._steps.hold(*together, prompt):
                together.append(prompt)
            else:
                self._read(together, cache)
                together = [prompt]
        if together:
            self._read(together, cache)

    def _read(self, prompts: abc.Sequence[Prompt], cache: RowCache) -> None:
        """Read one prompt, or several as a step; their time is shared evenly."""
        sequences = [sequence for sequence, _ in prompts]
        if len(prompts) > 1:
            step = self._steps.read(prompts, cache)
        else:
            [(sequence, draft)] = prompts
            start = sequence.num_reused_tokens
            logits = self._prefill.read(
                self._model, cache, sequence.row, sequence.prompt_ids, draft, start
            )
            step = StepLogits(logits[0], [0])
        for sequence in sequences:
            self._keep(sequence, cache)
        self._commit(sequences, [draft for _, draft in prompts], step, cache)
        seconds = self._clock.lap() / len(prompts)
        for sequence in sequences:
            sequence.prefill_seconds = seconds

    def _keep(self, sequence: Sequence, cache: RowCache) -> None:
        """Keep what was read of a sequence: all but the last token of its output."""
        if self._prefix_cache is not None:
            read_ids = [*sequence.prompt_ids, *sequence.output_ids[:-1]]
            self._prefix_cache.keep(read_ids, cache, sequence.row)

    @torch.inference_mode()
    def _step(self, rows: Rows, cache: RowCache) -> None:
        """One forward for all rows; its time is shared evenly by those in use."""
        drafts = self._draft(rows)
        logits = self._steps.take(rows, drafts, cache)
        self._commit(rows, drafts, logits, cache)
        running = [sequence for sequence in rows if sequence is not None]
        seconds = self._clock.lap() / len(running)
        for sequence in running:
            sequence.decode_seconds += seconds

    def _draft(self, rows: Rows) -> list[Draft]:
        """What each row verifies next: its drafter's draft, else the draft model's."""
        drafts = [
            sequence.propose(self._thresholds) if sequence else _NO_DRAFT for sequence in rows
        ]
        if self._draft_model is not None:
            drafts = self._draft_model.propose(rows, drafts)
        if self._steps.totals:
            most = self._steps.totals[-1] - len(rows)
            drafts = share(drafts, self._prices, most)
        return drafts

    def _commit(
        self,
        rows: abc.Sequence[Sequence | None],
        drafts: list[Draft],
        step: StepLogits,
        cache: RowCache,
    ) -> None:
        """Verify each row's draft and commit what the model accepts of it.

        Args:
            rows: the sequences whose drafts were verified.
            drafts: of each row.
            step: the logits.
            cache: an accepted branch of a tree moves to where a chain's tokens are.
        """
        parts = step.parts(drafts)
        greedy = any(sequence.chooser.is_argmax for sequence in rows if sequence)
        num_likeliest = max(sequence.num_likeliest for sequence in rows if sequence)
        top = [TopTokens([], [])] * len(rows)
        if greedy or num_likeliest:
            top = top_tokens(step.logits, parts, num_likeliest)
        for index, (sequence, draft) in enumerate(zip(rows, drafts, strict=True)):
            if sequence is None:
                continue
            first = sequence.length
            choose = sequence.choices(draft, top[index].argmax, step.logits[parts[index]])
            path = sequence.commit(draft, choose, top[index].likeliest).path
            if path and path[-1] >= len(path):
                cache.move(sequence.row, [first + node for node in path], first)

    def _compact(self, rows: Rows, cache: RowCache) -> None:
        """Move the last rows into the holes and drop the rest, once nothing waits for them."""
        while rows and not all(rows):
            last = rows.pop()
            if last is not None:
                hole = rows.index(None)
                cache.copy_row(last.row, hole)
                if self._draft_model is not None:
                    self._draft_model.copy_row(last.row, hole)
                rows[hole], last.row = last, hole
