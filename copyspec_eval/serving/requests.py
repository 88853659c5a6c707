"""The requests behind the rows of another engine, which gives neither names nor endings."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from copyspec_eval.decoding.sequence import Sequence as Decoded
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.drafters.registry import DrafterFactory
from copyspec_eval.types import Attempt, Draft, Span, Verdict

TokenIds = Sequence[int]
Row = tuple[NDArray[numpy.int32], int]
"""Tokens of prompt and output so far, and how many of them the step has just added."""


class Drafted(NamedTuple):
    """What was drafted for an answer, as in `Generation`."""

    attempts: Sequence[Attempt] = ()
    spans: Sequence[Span] = ()


class Request:
    """A request, recognised by its `text`; `draft` is the last one, not yet verified."""

    def __init__(self, prompt_ids: TokenIds, room: int, make: DrafterFactory) -> None:
        self.text = numpy.array(prompt_ids, numpy.int32)
        self.sequence = Decoded(prompt_ids, StopRule(max(1, room)))
        self.sequence.start(make())
        self.draft = Draft()
        self._starts: list[int] = []
        self._make = make

    def go_on(self, text: NDArray[numpy.int32]) -> None:
        """Take what was added: the draft's accepted tokens, one more, and later steps' tokens."""
        sequence, token_ids = self.sequence, text[len(self.text) :].tolist()
        self.text, count = text.copy(), len(token_ids)
        draft, self.draft = self.draft, Draft()
        # If the engine has cut the draft, the token behind it may be the draft's next one.
        if len(draft.token_ids) >= count and draft.token_ids[count - 1] == token_ids[-1]:
            draft = draft.cut(count - 1)
        before = len(sequence.output_ids)
        if draft.token_ids:
            self._starts.append(before)
        sequence.commit(draft, token_ids.__getitem__)
        # None are left, unless the engine went on without asking for drafts.
        for token_id in token_ids[len(sequence.output_ids) - before :]:
            if sequence.finish_reason is None:
                sequence.commit(Draft(), [token_id].__getitem__)

    def propose(self, thresholds: Sequence[float]) -> list[int]:
        self.draft = self.sequence.propose(thresholds)
        return list(self.draft.token_ids)

    def end(self) -> None:
        """Leave the rows; the draft stays: if a step had no room, the engine verifies it later."""
        self.sequence.drafter.finish()
        self.sequence.drafter = NoDrafter()  # its index is large

    def resume(self) -> None:
        """Come back after being preempted, or left out of a step."""
        sequence = self.sequence
        sequence.drafter = self._make()
        sequence.drafter.start(sequence.prompt_ids)
        if sequence.output_ids:
            sequence.drafter.observe(sequence.output_ids, Verdict(0, sequence.output_ids[-1]))

    def drafted(self, text: NDArray[numpy.int32], num_prompt_tokens: int) -> Drafted:
        """What was drafted for the answer, up to its end; `text` is the whole prompt and answer."""
        sequence = self.sequence
        if len(text) > len(self.text):
            self.go_on(text)
        before = len(sequence.prompt_ids) - num_prompt_tokens
        length = len(text) - len(sequence.prompt_ids)
        attempts = [
            attempt._replace(num_accepted=min(attempt.num_accepted, length - start))
            for start, attempt in zip(self._starts, sequence.attempts, strict=True)
            if start < length
        ]
        spans = [span for span in sequence.spans if span.start < length]
        cut = [Span(before + s, min(n, length - s), source) for s, n, source in spans]
        return Drafted(attempts, cut)


class Requests:
    """Which request is in which row: the one whose tokens the row extends, or a new one.

    Rows change places between steps. A request in no row has ended or was left out, and may come
    back. The engine drops the last draft of a preempted request without notice, so that draft
    counts as rejected. `running` are the requests of the last step; it `is_steady` if it continued
    exactly those of the step before.

    When recording, `ended` remembers requests in no row until `take_drafted`. A server must not, or
    it would remember all answers: there, a request that comes back is new, and drafts alike.
    """

    def __init__(self, make: DrafterFactory, max_length: int, is_recording: bool) -> None:
        self._make = make
        self._max_length = max_length
        self._is_recording = is_recording
        self.running: list[Request] = []
        self.ended: list[Request] = []
        self.is_steady = False

    def take(self, rows: Sequence[Row | None]) -> list[Request | None]:
        """The request of each row, with the tokens that the step has added; None for None."""
        by_length: defaultdict[int, list[Request]] = defaultdict(list)
        for request in self.running:
            by_length[len(request.text)].append(request)
        taken = [row and _next(row, by_length) for row in rows]
        left = [request for same in by_length.values() for request in same]
        self.is_steady = not left and None not in taken
        for number, row in enumerate(rows):
            if row is not None:
                taken[number] = each = taken[number] or self._other(row, left)
                each.go_on(row[0])
        self.running = [request for request in taken if request is not None]
        for request in left:
            request.end()
        if self._is_recording:
            self.ended += left
        return taken

    def take_drafted(self, answers: Iterable[tuple[TokenIds, TokenIds]]) -> list[Drafted]:
        """What was drafted for each prompt and answer, by one request each; then forget all."""
        for request in self.running:
            request.end()
        left = [*self.ended, *self.running]
        self.running, self.ended = [], []
        drafted = []
        for prompt_ids, answer_ids in answers:
            text = numpy.array([*prompt_ids, *answer_ids], numpy.int32)
            # A prompt can have several answers that begin alike.
            alike = [
                (len(each.sequence.prompt_ids), abs(len(each.text) - len(text)), number)
                for number, each in enumerate(left)
                if len(prompt_ids) <= len(each.sequence.prompt_ids) and _agree(text, each.text)
            ]
            # For an answer without a request, the engine never asked for a draft.
            nearest = left.pop(min(alike)[-1]) if alike else None
            drafted.append(nearest.drafted(text, len(prompt_ids)) if nearest else Drafted())
        return drafted

    def _other(self, row: Row, left: list[Request]) -> Request:
        """The request of a row that is not simply one step on."""
        text, count = row
        before = text[: len(text) - count]
        # The row may be several steps on: the engine does not ask for drafts after each.
        shorter = [each for each in (*left, *self.ended[::-1]) if len(each.text) <= len(before)]
        begun = [each for each in shorter if _agree(each.text, before)]
        if not begun:
            return Request(before.tolist(), self._max_length - len(before), self._make)
        request = max(begun, key=lambda each: len(each.text))
        if request in left:
            left.remove(request)
        else:
            self.ended.remove(request)
            request.resume()
        return request


def _next(row: Row, by_length: dict[int, list[Request]]) -> Request | None:
    """Take the request to which the step has added the row's last tokens out of `by_length`."""
    text, count = row
    before = text[: len(text) - count]
    alike = by_length[len(before)]
    request = next((each for each in alike if _agree(each.text, before)), None)
    if request is not None:
        alike.remove(request)
    return request


def _agree(text: NDArray[numpy.int32], other: NDArray[numpy.int32]) -> bool:
    last = min(len(text), len(other)) - 1
    # The last token is compared first, since texts that only begin alike seldom share it.
    return bool(text[last] == other[last]) and numpy.array_equal(text[:last], other[:last])
