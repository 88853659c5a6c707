"""An engine as vLLM is for its proposer: rows that change places, whose answers are given."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy

MOST_LENGTH = 256


@dataclass(eq=False)
class Asked:
    """A request: what it is asked, what it will answer, and what of that there is.

    `drafts` are those it was given, after so many output tokens as `lengths` say; `verified` has
    the tokens drafted and accepted of each step that had a draft, `ours` those of them for which
    the proposer was asked. A stop string is complete after `stop` tokens of the answer.
    """

    prompt_ids: list[int]
    answer_ids: list[int]
    stop: int | None = None
    output_ids: list[int] = field(default_factory=list)
    draft: list[int] = field(default_factory=list)
    drafts: list[list[int]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    verified: list[tuple[int, int]] = field(default_factory=list)
    ours: list[tuple[int, int]] = field(default_factory=list)
    is_asked: bool = True
    is_read: bool = False

    @property
    def is_stopped(self) -> bool:
        return self.stop is not None and len(self.output_ids) >= self.stop

    @property
    def is_done(self) -> bool:
        return self.is_stopped or len(self.output_ids) >= len(self.answer_ids)

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    def step(self) -> list[int]:
        """What a step adds: the accepted tokens of the draft, and the next."""
        left = self.answer_ids[len(self.output_ids) :]
        same = [a == b for a, b in zip(self.draft, left[:-1], strict=False)]
        accepted = [*same, False].index(False)
        if self.draft:
            self.verified.append((len(self.draft), accepted))
            self.ours += self.verified[-1:] if self.is_asked else []
        sampled = left[: accepted + 1]
        self.output_ids += sampled
        return sampled


def config(longest: int = 10, max_length: int = MOST_LENGTH) -> Any:
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=longest),
        model_config=SimpleNamespace(max_model_len=max_length),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
    )


def serve(
    proposer: Any,
    requests: Sequence[Asked],
    num_rows: int,
    source: random.Random,
    on_step: Callable[[Asked, list[int]], None] = lambda request, sampled: None,
    longest: int = 10,
    max_length: int = MOST_LENGTH,
) -> None:
    """Answer all requests; some are preempted or left out, drafts cut, prompts read in parts.

    `on_step` is called with each request and what a step gave it; without a proposer, none drafts.
    As vLLM, it asks for no drafts when a row is within `longest` of `max_length` tokens, but gives
    all rows so many zeros. With a lower `max_length` no row is preempted and no draft cut, since a
    proposer could not see what became of it meanwhile.
    """
    is_short = max_length < MOST_LENGTH
    cuts, preempted_share = ((99,), 0.0) if is_short else ((0, 3, 99, 99, 99), 0.2)
    waiting = list(requests)
    rows: list[Asked] = []
    left_out: list[Asked] = []
    tokens = numpy.zeros((num_rows, MOST_LENGTH), dtype=numpy.int32)
    while waiting or rows or left_out:
        rows += left_out
        while waiting and len(rows) < num_rows:
            rows.append(waiting.pop(0))
        source.shuffle(rows)
        # A step may have no room for a row, which keeps its draft.
        left_out = [request for request in rows[1:] if request.is_read and source.random() < 0.1]
        rows = [request for request in rows if request not in left_out]
        sampled: list[list[int]] = []
        for row, request in enumerate(rows):
            if not request.is_read and source.random() < 0.3:
                sampled.append([])  # a part of its prompt was read
            else:
                request.is_read = True
                request.draft = request.draft[: source.choice(cuts)]
                sampled.append(request.step())
            text = request.prompt_ids + request.output_ids
            tokens[row, : len(text)] = text
            tokens[row, len(text) :] = 7  # left by another
        lengths = numpy.array([request.length for request in rows])
        for request, of_step in zip(rows, sampled, strict=True):
            on_step(request, of_step)
        is_asked = lengths.max() + longest <= max_length
        drafts = [[0] * longest if of_step and proposer else [] for of_step in sampled]
        if proposer and is_asked:
            drafts = proposer.propose(sampled, lengths, tokens)
        assert len(drafts) == len(rows)
        for request, draft, of_step in zip(rows, drafts, sampled, strict=True):
            request.draft, request.is_asked = draft, is_asked
            if of_step:
                request.drafts.append(draft)
                request.lengths.append(len(request.output_ids))
            else:
                assert not draft
        rows = [request for request in rows if not request.is_done]
        if len(rows) > 1 and source.random() < preempted_share:
            preempted = rows.pop(source.randrange(len(rows)))
            preempted.is_read, preempted.draft = False, []
            waiting.append(preempted)
