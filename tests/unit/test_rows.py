"""Verification, stopping and bookkeeping, without a model."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from doubles import ScriptedDrafter
from hypothesis import given
from hypothesis import strategies as st

from copyspec_eval.decoding.row import Row
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.decoding.verify import verify
from copyspec_eval.types import Attempt, Draft, Span, Verdict

token_lists = st.lists(st.integers(0, 3), max_size=12)


@given(draft=token_lists, wanted=st.lists(st.integers(0, 3), min_size=13, max_size=13))
def test_verify_keeps_the_longest_agreeing_prefix(draft: list[int], wanted: list[int]) -> None:
    asked = []

    def choose(index: int) -> int:
        asked.append(index)
        return wanted[index]

    verdict = verify(Draft(tuple(draft)), choose)
    kept = verdict.num_accepted
    assert draft[:kept] == wanted[:kept]
    assert kept == len(draft) or draft[kept] != wanted[kept]
    assert verdict.next_token == wanted[kept]
    assert asked == list(range(kept + 1)), "a choice may depend on all before it being accepted"


class DraftList(ScriptedDrafter):
    """Proposes given drafts, one a step."""

    def __init__(self, drafts: Sequence[Sequence[int]]) -> None:
        self.drafts = list(drafts)
        self.observed: list[tuple[list[int], Verdict]] = []

    def start(self, prompt_ids: Sequence[int]) -> None:
        self.prompt = list(prompt_ids)

    def propose(self, max_tokens: int, prices: Sequence[float]) -> Draft:
        return Draft(tuple(self.drafts.pop(0) if self.drafts else ()), position=0)

    def observe(self, token_ids: Sequence[int], verdict: Verdict) -> None:
        self.observed.append((list(token_ids), verdict))


def run(row: Row, answer: Sequence[int], width: int = 11) -> None:
    row.settle(Draft(), answer.__getitem__)
    while row.finish_reason is None:
        row.settle(row.propose([0.0] * width), answer[len(row.output_ids) :].__getitem__)


@given(
    answer=st.lists(st.integers(0, 3), min_size=30, max_size=30),
    drafts=st.lists(token_lists, max_size=20),
    budget=st.integers(1, 18),
    eos=st.sets(st.integers(0, 5), max_size=1),
)
def test_any_drafts_give_the_plain_answer(
    answer: list[int], drafts: list[list[int]], budget: int, eos: set[int]
) -> None:
    rule = StopRule(budget, eos)
    row = Row([7], DraftList(drafts), budget, rule.reason)
    run(row, answer)
    ends = [index + 1 for index, token in enumerate(answer[:budget]) if token in eos]
    assert row.output_ids == answer[: ends[0] if ends else budget]
    assert row.finish_reason == ("eos" if ends else "length")
    accepted = sum(attempt.num_accepted for attempt in row.attempts)
    # A step ends on the model's own token unless the answer ends inside its draft.
    assert len(row.output_ids) in (row.num_forwards + accepted, row.num_forwards + accepted - 1)
    assert all(0 <= a.num_accepted <= a.num_drafted for a in row.attempts)
    assert sum(span.length for span in row.spans) == accepted


def test_bookkeeping_by_hand() -> None:
    drafter = DraftList([[5, 6, 0], [], [8, 9]])
    row = Row([1, 2], drafter, 10, StopRule(10, {9}).reason)
    run(row, [4, 5, 6, 7, 3, 8, 9, 9])
    assert row.output_ids == [4, 5, 6, 7, 3, 8, 9]
    assert row.finish_reason == "eos"
    assert row.num_forwards == 4
    assert row.attempts == [Attempt(3, 2), Attempt(2, 2)]
    assert row.spans == [Span(1, 2, 0), Span(5, 2, 0)]
    assert row.length == 9
    assert drafter.observed == [
        ([4], Verdict(0, 4)),
        ([5, 6, 7], Verdict(2, 7)),
        ([3], Verdict(0, 3)),
        ([8, 9], Verdict(2, 9)),
    ]


def test_drafts_are_cut_to_the_width_and_the_budget() -> None:
    row = Row([1], DraftList([[5] * 50, [5] * 50]), 8, StopRule(8).reason)
    row.settle(Draft(), lambda index: 5)
    assert len(row.propose([0.0] * 4).token_ids) == 4
    assert len(row.propose([0.0] * 40).token_ids) == 6


PIECES = ["a", "b", "\n", "\n\n", "ab", "Que", "stion", ":", "é", ""]


def decode(token_ids: Sequence[int]) -> str:
    return "".join(PIECES[token] for token in token_ids)


@pytest.mark.parametrize(
    ("stop", "token_ids", "length"),
    [
        ("\n\n", [0, 2, 2, 0], 3),  # from two single newlines
        ("\n\n", [0, 3, 0], 2),
        ("bQuestion:", [4, 5, 6, 7, 0], 4),  # begins inside a token
        ("estio", [0, 5, 6, 7], 3),  # ends inside one
        ("ba", [1, 9, 9, 9, 9, 9, 0, 1], 7),  # across tokens without text
    ],
)
def test_a_stop_string_counts_from_the_token_that_completes_it(
    stop: str, token_ids: list[int], length: int
) -> None:
    rule = StopRule(100, stop_strings=[stop], decode=decode)
    reasons = [rule.reason(token_ids[:count]) for count in range(1, length + 1)]
    assert reasons == [None] * (length - 1) + ["stop"]


@given(
    token_ids=st.lists(st.integers(0, 8), min_size=1, max_size=30),
    stops=st.lists(st.text("abQuestion:\né", min_size=1, max_size=9), min_size=1, max_size=3),
)
def test_stop_strings_end_where_the_whole_text_first_contains_one(
    token_ids: list[int], stops: list[str]
) -> None:
    rule = StopRule(100, stop_strings=stops, decode=decode)
    for count in range(1, len(token_ids) + 1):
        contained = any(stop in decode(token_ids[:count]) for stop in stops)
        assert (rule.reason(token_ids[:count]) == "stop") == contained
        if contained:
            break


def test_stop_strings_need_a_decoder() -> None:
    with pytest.raises(ValueError, match="decoder"):
        StopRule(3, stop_strings=["x"])
