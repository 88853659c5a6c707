"""Every sequence twice: with drafts, and by plain one-token decoding, in turn."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from transformers import PreTrainedModel

from copyspec_eval.decoding.differences import Rescorer
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.types import Difference, Generation


@dataclass(frozen=True, slots=True)
class Baseline:
    """The answer of plain one-token decoding, and where the drafted answer differs from it."""

    generation: Generation
    difference: Difference | None


class PairedEngine:
    """Measures an engine against plain one-token decoding of the same model, cache and attention.

    Sequences are taken in groups as large as the batch, so a batch is compared with a batch; a
    group is answered by both arms before the next begins, and the arm that goes first changes with
    every group, so that drift of the machine affects both alike. The baseline commits one token per
    row and step. In exact mode it takes the narrowest exact steps, so that its answers are the same
    bits; never those of a fixed width, since padding would flatter the arm that drafts.

    Args:
        model: as for `engine`.
        engine: the arm that drafts.
        prefix_cache: the baseline's, as large as that of `engine`.
    """

    def __init__(
        self, model: PreTrainedModel, engine: Engine, prefix_cache: PrefixCache | None = None
    ) -> None:
        self._engine = engine
        steps = engine.exact
        if steps is not None and steps.kind == "fixed width":
            steps = None
        self._baseline = Engine(
            model,
            NoDrafter,
            num_draft_tokens=0,
            exact=steps,
            batch_size=engine.batch_size,
            prefix_cache=prefix_cache,
            cache=engine.cache,
        )
        self._rescorer = Rescorer(model, self._baseline, engine)

    def warm_up(self, sequence: Sequence) -> None:
        """As `Engine.warm_up`, both arms."""
        self._engine.warm_up(sequence)
        self._baseline.warm_up(sequence)

    def check(self, sequences: Iterable[Sequence]) -> None:
        """As `Engine.check`."""
        self._engine.check(sequences)

    def generate(
        self,
        sequences: abc.Sequence[Sequence],
        on_finish: Callable[[int, Generation, Baseline], None],
    ) -> None:
        """Answer `sequences` in the order given.

        Args:
            sequences: what to answer; they stay as they are.
            on_finish: called with a sequence's index, its drafted answer and its baseline once both
                are there.

        Raises:
            RequestError: as `check`; nothing is begun then.
        """
        self.check(sequences)
        size = self._engine.batch_size
        for start in range(0, len(sequences), size):
            group = sequences[start : start + size]
            arms = [self._engine, self._baseline]
            if start // size % 2:
                arms.reverse()
            answers = {
                arm: arm.generate([sequence.restarted() for sequence in group], beside=sequences)
                for arm in arms
            }
            for index, sequence in enumerate(group):
                answer, baseline = (answers[arm][index] for arm in (self._engine, self._baseline))
                difference = self._rescorer.explain(sequence, answer.token_ids, baseline.token_ids)
                on_finish(start + index, answer, Baseline(baseline, difference))
