"""The requests behind the rows of another engine, which gives neither names nor endings."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence

import numpy
from numpy.typing import NDArray

from copyspec_eval.decoding.sequence import Sequence as Decoded
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.drafters.registry import DrafterFactory
from copyspec_eval.types import Draft, Verdict

_MOST_ENDED = 1024

Row = tuple[NDArray[numpy.int32], int]
"""Tokens of prompt and output so far, and how many of the last ones the step has just added."""


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
        count = len(token_ids)
        draft = self.draft.token_ids
        # Where the engine has cut the draft, the token behind it may be the next of the draft, too.
        if len(draft) >= count and draft[count - 1] == token_ids[-1]:
            self.draft = self.draft.cut(count - 1)
        self.sequence.commit(self.draft, token_ids.__getitem__)
        self.draft = Draft()

    def propose(self, thresholds: Sequence[float]) -> list[int]:
        """Draft tokens for the next step."""
        self.draft = self.sequence.propose(thresholds)
        return list(self.draft.token_ids)

    def end(self) -> None:
        """It is in no row any more; its answer can be copied from."""
        self.sequence.drafter.finish()
        self.sequence.drafter = NoDrafter()  # its index is large
        self.draft = Draft()

    def resume(self) -> None:
        """It is back: it had been preempted."""
        sequence = self.sequence
        sequence.drafter = self._make()
        sequence.drafter.start(sequence.prompt_ids)
        if sequence.output_ids:
            sequence.drafter.observe(sequence.output_ids, Verdict(0, sequence.output_ids[-1]))


class Requests:
    """Which request is in which row.

    A row goes on with the request whose tokens it extends; what none extends is a new one. Rows
    change places between steps, and a request that is in no row has ended or was preempted: it may
    come back.

    Args:
        make: makes the drafter of a request.
        max_length: tokens that prompt and output may have together.
        most_ended: how many requests are remembered that are in no row.

    Attributes:
        running: those of the last step.
        ended: those that are in no row, the latest last.
    """

    def __init__(
        self, make: DrafterFactory, max_length: int, most_ended: int = _MOST_ENDED
    ) -> None:
        self._make = make
        self._max_length = max_length
        self._most_ended = most_ended
        self._texts: dict[Request, NDArray[numpy.int32]] = {}
        self.running: list[Request] = []
        self.ended: OrderedDict[Request, None] = OrderedDict()

    def take(self, rows: Iterable[Row | None]) -> list[Request | None]:
        """The request of each row, with the tokens that the step has added; None of no row."""
        by_length: defaultdict[int, list[Request]] = defaultdict(list)
        for request in (*self.running, *reversed(self.ended)):
            by_length[len(self._texts[request])].append(request)
        taken: list[Request | None] = []
        for row in rows:
            taken.append(row and self._taken(row, by_length))
        running = [request for request in taken if request is not None]
        for request in self.running:
            if request not in running:
                request.end()
                self.ended[request] = None
        self.running = running
        while len(self.ended) > self._most_ended:
            request, _ = self.ended.popitem(last=False)
            del self._texts[request]
        return taken

    def _taken(self, row: Row, by_length: defaultdict[int, list[Request]]) -> Request:
        text, count = row
        before = text[: len(text) - count]
        alike = by_length[len(before)]
        request = next((r for r in alike if numpy.array_equal(self._texts[r], before)), None)
        if request is None:
            prompt_ids = before.tolist()
            request = Request(prompt_ids, self._max_length - len(prompt_ids), self._make)
        else:
            alike.remove(request)
            if request in self.ended:
                del self.ended[request]
                request.resume()
        request.commit(text[len(before) :].tolist())
        self._texts[request] = text.copy()
        return request
