"""Count a drafter's forwards on recorded answers, with no model.

For greedy decoding the answer is known beforehand, so whether a draft token is accepted is too:
the counts are exactly those of a real run.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from copyspec_eval.decoding.row import Row
from copyspec_eval.drafters.base import Drafter
from copyspec_eval.errors import DataError
from copyspec_eval.sources import read_jsonl


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded turn: a prompt and the answer that a model gave to it, as token ids."""

    category: str
    turn: int
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplayedTurn:
    """What a drafter made of one trace; counts as in `TurnRecord`, and no seconds."""

    category: str
    turn: int
    num_tokens: int
    num_forwards: int
    num_prefill_tokens: int
    num_attempts: int
    num_drafted: int
    num_accepted: int
    num_copied: int
    seconds: float = 0.0
    decode_seconds: float = 0.0
    latency_seconds: float = 0.0
    baseline: None = None


def read_traces(path: Path) -> Iterator[Trace]:
    """Traces of a JSONL file with `category, turn, prompt_ids, answer_ids` in each row.

    Raises:
        DataError: the file is missing or empty, or a line is not such a row.
    """
    for where, fields in read_jsonl(path):
        try:
            yield Trace(
                category=str(fields["category"]),
                turn=int(fields["turn"]),
                prompt_ids=tuple(fields["prompt_ids"]),
                answer_ids=tuple(fields["answer_ids"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{where}: not a trace ({error!r}); give category, turn, prompt_ids, answer_ids"
            ) from error


def replay_turn(
    trace: Trace, drafter: Drafter, prices: Sequence[float], max_new_tokens: int = 1024
) -> ReplayedTurn:
    """Run the decoding loop on `trace`, the recorded answer standing in for the model.

    Args:
        trace: the prompt and the answer.
        drafter: a drafter that has not begun.
        prices: of draft tokens, as for `Drafter.propose`; they also bound a draft's length.
        max_new_tokens: the budget that the answer was generated under; drafters look at what is
            left of it.

    Returns:
        counts in which the prefill, which may carry a draft, is one forward.

    Raises:
        DataError: the trace has no answer tokens.
    """
    answer = trace.answer_ids
    if not answer:
        raise DataError("a trace with an empty answer_ids cannot be replayed")
    end = len(answer)
    row = Row(
        trace.prompt_ids,
        drafter,
        max(max_new_tokens, end),
        finish=lambda output_ids: "length" if len(output_ids) == end else None,
    )
    # A draft may run past the end, where -1 stands for "nothing follows" and equals no token.
    padded = (*answer, -1)
    while row.finish_reason is None:
        # Asked once for each token on the way, whichever branch it is on.
        coming = iter(padded[len(row.output_ids) :])
        row.settle(row.propose(prices), functools.partial(_next_of, coming))
    return _counts(trace, row)


def _next_of(coming: Iterator[int], _: int) -> int:
    return next(coming)


def _counts(trace: Trace, row: Row) -> ReplayedTurn:
    return ReplayedTurn(
        category=trace.category,
        turn=trace.turn,
        num_tokens=len(row.output_ids),
        num_forwards=row.num_forwards,
        num_prefill_tokens=row.num_prefill_tokens,
        num_attempts=len(row.attempts),
        num_drafted=sum(attempt.num_drafted for attempt in row.attempts),
        num_accepted=sum(attempt.num_accepted for attempt in row.attempts),
        num_copied=sum(attempt.num_copied for attempt in row.attempts),
    )
