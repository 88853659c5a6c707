"""Answers of both arms of a paired engine over a tiny model, and their differences."""

from collections import abc
from collections.abc import Callable
from typing import Any, NamedTuple

from asking import asked as sequences_of
from asking import engine, greedy
from tiny_models import prompts

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.drafters.registry import DrafterFactory, drafter_factory
from copyspec_eval.pairs.paired import PairedAnswer, PairedEngine
from copyspec_eval.types import Difference, DraftOptions, ExactMode, Generation

BUDGET = 40  # tokens of an answer


class Pair(NamedTuple):
    drafted: Generation
    baseline: Generation
    difference: Difference | None

    @property
    def agreement(self) -> str:
        return self.difference.agreement if self.difference else "identical"


def copying(gamma: int = 1) -> DrafterFactory:
    return drafter_factory(DraftOptions("copyspec", gamma=gamma))


def engine_of(
    model: Any, make_drafter: DrafterFactory, exact: bool = True, batch_size: int = 1
) -> Engine:
    """If exact, its steps have one width, and bits of their own."""
    return engine(model, make_drafter, ExactMode(16) if exact else None, batch_size=batch_size)


def plain_of(model: Any) -> Engine:
    return engine(model, num_draft_tokens=0)


def pairs_of(
    model: Any,
    make_drafter: DrafterFactory,
    exact: bool = True,
    batch_size: int = 1,
    make_chooser: Callable[[], TokenChooser] = greedy,
    asked: abc.Sequence[tuple[int, ...]] | None = None,
) -> list[Pair]:
    sequences = sequences_of(asked or prompts(), BUDGET, make_chooser)
    actual: list[Pair] = []

    def finish(index: int, answers: list[PairedAnswer]) -> None:
        assert index == len(actual)
        actual.extend(Pair(*answer) for answer in answers)

    judged = engine_of(model, make_drafter, exact, batch_size)
    PairedEngine(model, [judged]).generate(sequences, finish)
    assert len(actual) == len(sequences)
    return actual
