"""The steps of an answer in order, from what a row has: drafts in order, and what was copied."""

from collections.abc import Iterator
from typing import NamedTuple

from copyspec_eval.records import TurnRecord

_MOST_STEPS = 20_000  # more are too narrow to be drawn


class Steps(NamedTuple):
    """Drafted and accepted tokens of each step, both 0 without a draft; and if all is in order."""

    counts: list[tuple[int, int]]
    is_ordered: bool


def steps(record: TurnRecord) -> Steps | None:
    """The steps of an answer; None if nothing was drafted, or if they are unknown or too many.

    A row has its drafts in order, and the place of accepted copies. Between two of these, steps
    with a rejected draft come first here, then those without a draft: their order is not recorded.
    """
    forwards = record.counts.num_forwards
    if not record.attempts or forwards is None or forwards > _MOST_STEPS:
        return None
    counts: list[tuple[int, int]] = []
    is_ordered = True
    for rejected, plain, accepted in _between_copies(record):
        if not 0 <= plain <= forwards:
            break
        is_ordered &= not (rejected and plain)
        counts += [*rejected, *[(0, 0)] * plain, *accepted]
    if len(counts) == forwards:
        return Steps(counts, is_ordered)
    # Nothing says where copies are, e.g. of a draft model's tokens: the steps without come last.
    drafts = [(drafted, accepted) for drafted, accepted, _ in record.attempts]
    plain = max(0, forwards - len(drafts))
    return Steps(drafts + [(0, 0)] * plain, not plain)


def _between_copies(
    record: TurnRecord,
) -> Iterator[tuple[list[tuple[int, int]], int, list[tuple[int, int]]]]:
    """Rejected drafts, how many steps without one, and the draft with a copy that follows."""
    spans, place, rejected = iter(record.spans), 0, list[tuple[int, int]]()
    for drafted, accepted, _ in record.attempts:
        if not accepted:
            rejected.append((drafted, 0))
            continue
        start, length, _ = next(spans, (-1, accepted, 0))
        # A tree's copies, one after the other.
        while length < accepted and (more := next(spans, None)):
            length += more.length
        yield rejected, start - place - len(rejected), [(drafted, accepted)]
        place, rejected = start + accepted + 1, []
    rest = (record.counts.num_tokens or 0) - place
    # An answer can end with a copy's last token.
    yield rejected, max(rest, 0) - len(rejected), []
