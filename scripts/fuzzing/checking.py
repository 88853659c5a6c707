"""The check of a case: its drafts change nothing, and its counts add up."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from copyspec_eval.decoding.engine import Engine
from copyspec_eval.pairs.differences import Rescorer
from copyspec_eval.types import Agreement, ExactMode
from fuzzing.arms import (
    Answer,
    answer_plainly,
    answer_with_drafts,
    exact_mode,
    plain_engine,
    sequence_of,
)
from fuzzing.cases import Case
from fuzzing.counts import miscounts
from fuzzing.models import model_of

_MOST_ALONE = 2
"""Requests of a batch that are answered alone, too; they take a forward per token."""


@dataclass(slots=True)
class Finding:
    """What became of a case.

    Attributes:
        case: what was checked.
        mode: the name of its exact mode, or "inexact", or which of the model's own caches.
        failures: in words; none if all is as it should be.
        agreements: of its answers with plain decoding.
        num_tokens, num_drafted, num_accepted: of its drafted answers together.
        num_logits: positions whose logits were compared bit for bit.
        num_alone: answers of an invariant batch that were compared with those of a batch of one.
    """

    case: Case
    mode: str
    failures: list[str] = field(default_factory=list)
    agreements: Counter[Agreement] = field(default_factory=Counter)
    num_tokens: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_logits: int = 0
    num_alone: int = 0

    def __str__(self) -> str:
        return f"seed={self.case.seed} case={self.case.number}: {'; '.join(self.failures)}"


def check(case: Case) -> Finding:
    """Answer the requests of a case in both ways, and compare."""
    exact = exact_mode(case, case.batch_size)
    inexact = "inexact" if case.model.cache == "copyspec" else case.model.cache
    actual = Finding(case, exact.name if exact else inexact)
    plain = answer_plainly(case, case.requests, exact, case.batch_size)
    engine, drafted = answer_with_drafts(case, exact, plain)
    for index, (answer, wanted) in enumerate(zip(drafted, plain, strict=True)):
        _count(actual, answer)
        failures = [*_differences(actual, engine, index, answer, wanted)]
        for arm, made in (("drafted", answer), ("plain", wanted)):
            wrong = miscounts(case, case.requests[index], made, is_plain=made is wanted)
            failures += [f"{arm} {what}" for what in wrong]
        actual.failures += [f"request {index}: {failure}" for failure in failures]
    if exact == ExactMode() and case.batch_size > 1:
        actual.failures += _compare_alone(actual, plain)
    return actual


def _count(actual: Finding, answer: Answer) -> None:
    made = answer.generation
    actual.num_tokens += len(made.token_ids)
    actual.num_drafted += sum(attempt.num_drafted for attempt in made.attempts)
    actual.num_accepted += sum(attempt.num_accepted for attempt in made.attempts)


def _differences(
    actual: Finding, engine: Engine, index: int, answer: Answer, wanted: Answer
) -> Iterator[str]:
    """Where a drafted answer is not what it has to be; its agreement is counted."""
    case = actual.case
    if engine.exact is not None:
        unequal = [*_unequal(actual, answer, wanted)]
        actual.agreements["diverged" if unequal else "identical"] += 1
        yield from unequal
        return
    made, plain = answer.generation, wanted.generation
    rescorer = Rescorer(model_of(case.model), plain_engine(case, None, case.batch_size), engine)
    sequence = sequence_of(case, case.requests[index])
    difference = rescorer.explain(sequence, made.token_ids, plain.token_ids)
    agreement = difference.agreement if difference else "identical"
    actual.agreements[agreement] += 1
    if agreement == "diverged":
        yield f"diverged, {difference}"
    if difference is None and made.counts.finish_reason != plain.counts.finish_reason:
        yield "another finish reason"


def _compare_alone(actual: Finding, plain: Sequence[Answer]) -> Iterator[str]:
    """Where a batch's answers are not those of a batch of one."""
    case = actual.case
    alone = answer_plainly(case, case.requests[:_MOST_ALONE], ExactMode(), 1)
    for index, answer in enumerate(alone):
        actual.num_alone += 1
        for failure in _unequal(actual, plain[index], answer):
            yield f"request {index} in a batch: {failure}"


def _unequal(actual: Finding, answer: Answer, wanted: Answer) -> Iterator[str]:
    """In which ways an answer is another one."""
    made, plain = answer.generation, wanted.generation
    if made.token_ids != plain.token_ids:
        yield f"tokens {made.token_ids} instead of {plain.token_ids}"
    if made.counts.finish_reason != plain.counts.finish_reason:
        yield f"ended by {made.counts.finish_reason}, not {plain.counts.finish_reason}"
    # Behind the first other token other logits are right.
    for place, (logits, bits) in enumerate(zip(answer.logits, wanted.logits, strict=False)):
        actual.num_logits += 1
        if not torch.equal(logits, bits):
            yield f"other logits of token {place}"
            return
