"""The requests behind the rows of another engine, which gives neither names nor endings."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from copyspec_eval.decoding.sequence import Sequence as Decoded
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.drafters.registry import DrafterFactory
from copyspec_eval.types import Draft, DraftSource, Span, Verdict

MOST_ENDED = 1024
"""Requests that are remembered although they are in no row: copies are asked for after as many."""

Row = tuple[NDArray[numpy.int32], int]
"""Tokens of prompt and output so far, and how many of the last ones the step has just added."""


class Copies(NamedTuple):
    """What was copied in a request.

    Attributes:
        prompt_ids: its prompt.
        output_ids: its output, and what the last step gave beyond the end.
        spans: as in `Generation`.
        sources: of each draft that was verified.
    """

    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    spans: Sequence[Span]
    sources: Sequence[DraftSource]


class Request:
    """A request that was recognised by its tokens.

    Attributes:
        sequence: its tokens, and what became of its drafts.
        draft: the last one, whose verdict is to come.
    """

    def __init__(self, prompt_ids: Sequence[int], room: int, make: DrafterFactory) -> None:
        self.sequence = Decoded(prompt_ids, StopRule(max(1, room)))
        self.sequence.start(make())
        self.draft = Draft()
        self._make = make

    def commit(self, token_ids: Sequence[int]) -> None:
        """Take what a step has added: the draft's accepted tokens, and one more."""
        sequence, count = self.sequence, len(token_ids)
        draft, self.draft = self.draft, Draft()
        # Where the engine has cut the draft, the token behind it may be the next of the draft, too.
        if len(draft.token_ids) >= count and draft.token_ids[count - 1] == token_ids[-1]:
            draft = draft.cut(count - 1)
        before = len(sequence.output_ids)
        sequence.commit(draft, token_ids.__getitem__)
        # None are left, unless the engine has verified another draft than ours.
        for token_id in token_ids[len(sequence.output_ids) - before :]:
            if sequence.finish_reason is None:
                sequence.commit(Draft(), [token_id].__getitem__)

    def propose(self, thresholds: Sequence[float]) -> list[int]:
        """Draft tokens for the next step."""
        self.draft = self.sequence.propose(thresholds)
        return list(self.draft.token_ids)

    def end(self) -> None:
        """It is in no row any more; its answer can be copied from.

        Its draft is kept: the engine may have had no room for the row in this step, and verifies
        the draft in a later one.
        """
        self.sequence.drafter.finish()
        self.sequence.drafter = NoDrafter()  # its index is large

    def resume(self) -> None:
        """It is back: it had been preempted, or a step had no room for it."""
        sequence = self.sequence
        sequence.drafter = self._make()
        sequence.drafter.start(sequence.prompt_ids)
        if sequence.output_ids:
            sequence.drafter.observe(sequence.output_ids, Verdict(0, sequence.output_ids[-1]))


class Requests:
    """Which request is in which row.

    A row goes on with the request whose tokens it extends; what none extends is a new one. Rows
    change places between steps, and a request that is in no row has ended or was left out: it may
    come back. Of one that was preempted, the engine has dropped the last draft; this is not seen,
    and the draft counts as rejected.

    Args:
        make: makes the drafter of a request.
        max_length: tokens that prompt and output may have together.
        most_ended: how many requests are remembered that are in no row.

    Attributes:
        running: those of the last step.
        ended: those that are in no row, the latest last.
    """

    def __init__(self, make: DrafterFactory, max_length: int, most_ended: int = MOST_ENDED) -> None:
        self._make = make
        self._max_length = max_length
        self._most_ended = most_ended
        self._texts: dict[Request, NDArray[numpy.int32]] = {}
        self.running: list[Request] = []
        self.ended: OrderedDict[Request, None] = OrderedDict()

    def take_copies(self) -> list[Copies]:
        """What was copied in all requests, which have ended; they are forgotten."""
        for request in self.running:
            request.end()
        sequences = [request.sequence for request in (*self.ended, *self.running)]
        self.running, self.ended, self._texts = [], OrderedDict(), {}
        return [
            Copies(
                each.prompt_ids,
                each.output_ids,
                each.spans,
                [attempt.source for attempt in each.attempts],
            )
            for each in sequences
        ]

    def take(self, rows: Iterable[Row | None]) -> list[Request | None]:
        """The request of each row, with the tokens that the step has added; None of no row."""
        by_length: defaultdict[int, list[Request]] = defaultdict(list)
        for request in self.running:
            by_length[len(self._texts[request])].append(request)
        taken = [row and self._taken(row, by_length) for row in rows]
        before, self.running = self.running, [request for request in taken if request is not None]
        running = {*self.running}
        for request in before:
            if request not in running:
                request.end()
                self.ended[request] = None
        while len(self.ended) > self._most_ended:
            request, _ = self.ended.popitem(last=False)
            del self._texts[request]
        return taken

    def _taken(self, row: Row, by_length: defaultdict[int, list[Request]]) -> Request:
        text, count = row
        before = text[: len(text) - count]
        alike = by_length[len(before)]
        request = self._extended(alike, before)
        if request is not None:
            alike.remove(request)
        else:
            request = self._extended(reversed(self.ended), before)
            if request is not None:
                del self.ended[request]
                request.resume()
        if request is None:
            prompt_ids = before.tolist()
            request = Request(prompt_ids, self._max_length - len(prompt_ids), self._make)
        request.commit(text[len(before) :].tolist())
        self._texts[request] = text.copy()
        return request

    def _extended(
        self, requests: Iterable[Request], before: NDArray[numpy.int32]
    ) -> Request | None:
        """The first of `requests` whose tokens those are."""
        for request in requests:
            text = self._texts[request]
            if len(text) == len(before) and numpy.array_equal(text, before):
                return request
        return None
