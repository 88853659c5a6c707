"""The steps of an answer in order, from what a row has: drafts in order, and what was copied."""

from collections.abc import Iterator
from typing import NamedTuple

from copyspec_eval.records import TurnRecord


class Steps(NamedTuple):
    """Drafted and accepted tokens of each step, both 0 without a draft; and if all is in order."""

    counts: list[tuple[int, int]]
    is_ordered: bool


def steps(record: TurnRecord) -> Steps | None:
    """The steps of an answer; None if nothing was drafted or the forwards are unknown.

    A row has its drafts in order, and the place of accepted copies. Between two of these, steps
    with a rejected draft come first here, then those without a draft: their order is not recorded.
    """
    forwards = record.counts.num_forwards
    if not record.attempts or forwards is None:
        return None
    counts: list[tuple[int, int]] = []
    is_ordered = True
    for rejected, plain, accepted in _between_copies(record):
        if plain < 0:
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
        start, length = next(spans, (-1, accepted, 0))[:2]
        while length < accepted:  # a tree's copies, one after the other
            length += next(spans, (0, accepted, 0))[1]
        yield rejected, start - place - len(rejected), [(drafted, accepted)]
        place, rejected = start + accepted + 1, []
    rest = (record.counts.num_tokens or 0) - place
    # An answer can end with a copy's last token.
    yield rejected, max(rest, 0) - len(rejected), []
