"""The runner with the engine's attention and `RowCache`: batches, exact mode, trees, prefixes."""

from __future__ import annotations

from collections import abc, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.forward import Part, forward
from copyspec_eval.decoding.modules import engine_kernels
from copyspec_eval.decoding.prefill import Prefill
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.steps import Prompt, Rows, StepLogits, Steps
from copyspec_eval.types import Draft, ExactMode, Verdict


class RowRunner:
    """A `Runner` whose rejected tokens are simply written over.

    Args:
        model: a model that `trial.check_cache` accepts.
        num_draft_tokens: of the longest draft.
        exact: the way of exact mode; None decodes without it.
        batch_size: rows side by side.
        prefix_cache: what was read before; nothing is kept if None.

    Attributes:
        widest, packs, padding, drafts_in_prefill: as of `Runner`.
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
        fixed_width = exact.width if exact else None
        self._steps = Steps(model, num_draft_tokens, fixed_width, batch_size)
        self._prefill = Prefill(is_fixed=fixed_width is not None)
        self._cache = RowCache(0, 0)
        self.widest, self.packs = self._steps.widest, self._steps.packs
        self.padding = self._steps.padding
        self.drafts_in_prefill = fixed_width is None

    @contextmanager
    def running(
        self, sequences: abc.Sequence[Sequence], beside: Iterable[Sequence]
    ) -> Iterator[None]:
        """As of `Runner`."""
        self._set_extents(sequences, beside)
        self._cache = RowCache(self._batch_size, max(sequence.extent for sequence in sequences))
        try:
            with engine_kernels(self._model, exact=self._exact is not None) as weights:
                if self._prefix_cache is not None:
                    computed_by = self._model, weights, self._exact
                    self._prefix_cache.begin(computed_by, self._prefill.block_length)
                yield
        finally:
            self._cache = RowCache(0, 0)

    def load(self, sequence: Sequence) -> None:
        """As of `Runner`: what the prefix cache has."""
        if self._prefix_cache is not None:
            # The last token is read in any case, for the logits after it.
            sequence.num_reused_tokens = self._prefix_cache.load(
                sequence.prompt_ids[:-1], self._cache, sequence.row
            )

    def reads_together(self, prompts: abc.Sequence[Prompt]) -> bool:
        """As of `Runner`: if a step holds them, whose bits a prefill has."""
        return self._prefill.resumes_answers and self._steps.hold(*prompts)

    def read(self, prompts: abc.Sequence[Prompt]) -> StepLogits:
        """As of `Runner`."""
        if len(prompts) > 1:
            step = self._steps.read(prompts, self._cache)
        else:
            [(sequence, draft)] = prompts
            start = sequence.num_reused_tokens
            logits = self._prefill.read(
                self._model, self._cache, sequence.row, sequence.prompt_ids, draft, start
            )
            step = StepLogits(logits, [0])
        for sequence, _ in prompts:
            self._keep(sequence)
        return step

    def can_draft(self, sequence: Sequence) -> bool:
        """As of `Runner`: always."""
        return True

    def step(self, rows: Rows, drafts: abc.Sequence[Draft]) -> StepLogits:
        """As of `Runner`."""
        return self._steps.take(rows, drafts, self._cache)

    def accept(self, sequence: Sequence, start: int, draft: Draft, verdict: Verdict) -> None:
        """As of `Runner`: an accepted branch of a tree moves to where a chain's tokens are."""
        path = verdict.path
        if path and path[-1] >= len(path):
            self._cache.move(sequence.row, [start + node for node in path], start)

    def finish(self, sequence: Sequence) -> None:
        """As of `Runner`: the answer is kept, too, where a prefill may begin behind it."""
        if self._prefill.resumes_answers:
            self._keep(sequence)

    def copy_row(self, source: int, target: int) -> None:
        """As of `Runner`."""
        self._cache.copy_row(source, target)

    def reread(self, sequence: Sequence, output_ids: abc.Sequence[int], keep: int) -> torch.Tensor:
        """As of `Runner`; in exact mode bit for bit what a `generate` of this output computes."""
        steps, prompt_ids = self._steps, sequence.prompt_ids
        widest = self.widest
        cache = RowCache(self._batch_size, steps.extent_of(sequence.max_length))
        with engine_kernels(self._model, exact=self._exact is not None):
            for row in range(self._batch_size):
                logits = self._prefill.read(self._model, cache, row, prompt_ids)
            parts = deque([logits.float()], maxlen=keep // widest + 2)
            for start in range(0, len(output_ids), widest):
                chunk = list(output_ids[start : start + widest])
                width = steps.common_width([len(chunk)])
                fed = chunk + chunk[-1:] * (width - len(chunk))
                first = len(prompt_ids) + start
                rows = [Part(row, first, fed) for row in range(self._batch_size)]
                extent = cache.capacity if steps.fixes_extent else None
                logits = forward(self._model, cache, rows, extent)
                parts.append(logits[: len(chunk)].float())
        return torch.cat(list(parts))[-keep:]

    def _keep(self, sequence: Sequence) -> None:
        """Keep what was read of a sequence: all but the last token of its output."""
        if self._prefix_cache is not None:
            read_ids = [*sequence.prompt_ids, *sequence.output_ids[:-1]]
            self._prefix_cache.keep(read_ids, self._cache, sequence.row)

    def _set_extents(self, sequences: abc.Sequence[Sequence], beside: Iterable[Sequence]) -> None:
        # Alone, a sequence's keys are fixed by itself; in a batch, by the run.
        extent_of = self._steps.extent_of
        longest = max(extent_of(sequence.max_length) for sequence in (*sequences, *beside))
        shared = self._steps.fixes_extent and self._batch_size > 1
        for sequence in sequences:
            sequence.extent = longest if shared else extent_of(sequence.max_length)
