"""Every sequence by each way of drafting, and by plain one-token decoding, in turn."""

import itertools
from collections import abc
from collections.abc import Callable, Iterator
from typing import NamedTuple

from transformers import PreTrainedModel

from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.pairs.differences import Rescorer
from copyspec_eval.types import Difference, Generation

_BATCHES = 4
"""Batches in a group, which is the most that a killed run loses."""


class PairedAnswer(NamedTuple):
    """An arm's answer, the one of plain decoding, and where the former differs from it."""

    generation: Generation
    baseline: Generation
    difference: Difference | None


class PairedEngine:
    """Measures engines, of one batch size and exact mode, against plain one-token decoding.

    A group of sequences is answered by every arm before the next one begins, and the arm that goes
    first changes with every group, so that drift of the machine affects all alike. In a batch, a
    group is several batches long, so that the wait for the longest answer comes once a group.
    `groups` numbers them over all calls of a run; `prefix_cache` is the baseline's.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        engines: abc.Sequence[Engine],
        prefix_cache: PrefixCache | None = None,
        groups: Iterator[int] | None = None,
    ) -> None:
        self._groups = groups or itertools.count()
        self._engines = list(engines)
        self._baseline = self._engines[0].without_drafter(0, prefix_cache)
        self._arms = [*self._engines, self._baseline]
        self._rescorers = [Rescorer(model, self._baseline, engine) for engine in self._engines]

    def warm_up(self, sequence: Sequence) -> None:
        for arm in self._arms:
            arm.warm_up(sequence)

    def check(self, sequences: abc.Sequence[Sequence]) -> None:
        """As `Engine.check`; the longest draft of all arms counts."""
        for engine in self._engines:
            engine.check(sequences)

    def generate(
        self,
        sequences: abc.Sequence[Sequence],
        on_finish: Callable[[int, list[PairedAnswer]], None],
    ) -> None:
        """Answer `sequences`; `on_finish` gets the index of each and its answers, one per engine.

        Raises:
            RequestError: as `check`; nothing is begun then.
        """
        self.check(sequences)
        batch_size = self._baseline.batch_size
        size = batch_size * _BATCHES if batch_size > 1 else 1
        for start in range(0, len(sequences), size):
            group = sequences[start : start + size]
            first = next(self._groups) % len(self._arms)
            answers = {
                arm: arm.generate([sequence.restarted() for sequence in group], others=sequences)
                for arm in [*self._arms[first:], *self._arms[:first]]
            }
            for index, sequence in enumerate(group):
                baseline = answers[self._baseline][index]
                paired = []
                for engine, rescorer in zip(self._engines, self._rescorers, strict=True):
                    answer = answers[engine][index]
                    difference = rescorer.explain(sequence, answer.token_ids, baseline.token_ids)
                    paired.append(PairedAnswer(answer, baseline, difference))
                on_finish(start + index, paired)
