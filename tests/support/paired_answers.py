"""Answers of both arms of a paired engine over a tiny model, and their differences."""

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tiny_models import prompts
from transformers import LogitsProcessorList

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.paired import Baseline, PairedAnswer, PairedEngine
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.drafters.registry import DrafterFactory, drafter_factory
from copyspec_eval.types import DraftOptions, ExactMode, Generation

BUDGET = 40
"""Tokens of an answer."""


@dataclass(frozen=True)
class Pair:
    """What `PairedEngine` gives of one sequence."""

    index: int
    drafted: Generation
    baseline: Baseline

    @property
    def agreement(self) -> str:
        difference = self.baseline.difference
        return difference.agreement if difference else "identical"


def greedy(*processors: Any) -> TokenChooser:
    return TokenChooser(LogitsProcessorList(processors), do_sample=False)


def copying(gamma: int = 1) -> DrafterFactory:
    return drafter_factory(DraftOptions("copyspec", gamma=gamma))


def engine_of(
    model: Any, make_drafter: DrafterFactory, exact: bool = True, batch_size: int = 1
) -> Engine:
    """One with drafts of ten tokens; if exact, its steps have one width, and bits of their own."""
    return Engine(
        model,
        make_drafter,
        num_draft_tokens=10,
        exact=ExactMode(16) if exact else None,
        batch_size=batch_size,
    )


def plain_of(model: Any) -> Engine:
    return Engine(model, NoDrafter, num_draft_tokens=0, exact=None)


def pairs_of(
    model: Any,
    make_drafter: DrafterFactory,
    exact: bool = True,
    batch_size: int = 1,
    make_chooser: Callable[[], TokenChooser] = greedy,
    asked: abc.Sequence[tuple[int, ...]] | None = None,
) -> list[Pair]:
    """Every prompt of `asked` answered by both arms, in order."""
    engine = engine_of(model, make_drafter, exact, batch_size)
    sequences = [Sequence(ids, StopRule(BUDGET), make_chooser()) for ids in asked or prompts()]
    actual: list[Pair] = []

    def finish(index: int, answers: list[PairedAnswer]) -> None:
        actual.extend(Pair(index, answer.generation, answer.baseline) for answer in answers)

    PairedEngine(model, [engine]).generate(sequences, finish)
    assert [pair.index for pair in actual] == list(range(len(sequences)))
    return actual
