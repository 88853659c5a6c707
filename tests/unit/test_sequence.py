"""Verification, stopping and bookkeeping, without a model; loops and copies in an answer."""

from collections.abc import Sequence as Tokens
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sample_rows import ROW, with_counts

from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.loops import looped_tokens
from copyspec_eval.records import segments
from copyspec_eval.reports.summary import METRICS
from copyspec_eval.reports.turns import frame
from copyspec_eval.session.span_characters import span_characters
from copyspec_eval.types import Attempt, CopyOrigin, Draft, DraftCounts, Span, TurnCounts, Verdict

token_lists = st.lists(st.integers(0, 3), max_size=12)


def begun(
    prompt_ids: Tokens[int], drafts: Tokens[Tokens[int]], rule: StopRule, **options: Any
) -> tuple[Sequence, mock.Mock]:
    """A sequence whose drafter proposes each of `drafts`, then nothing."""
    rest = [Draft(tuple(ids), position=0) for ids in drafts]
    drafter, sequence = mock.Mock(), Sequence(prompt_ids, rule, **options)
    drafter.propose = lambda *_: rest.pop(0) if rest else Draft()
    sequence.start(drafter)
    return sequence, drafter


def run(sequence: Sequence, answer: Tokens[int], width: int = 11) -> None:
    sequence.commit(Draft(), answer.__getitem__)
    while sequence.finish_reason is None:
        draft = sequence.propose(width, 0.0)
        sequence.commit(draft, answer[len(sequence.output_ids) :].__getitem__)


@given(
    answer=st.lists(st.integers(0, 3), min_size=30, max_size=30),
    drafts=st.lists(token_lists, max_size=20),
    budget=st.integers(1, 18),
    eos=st.sets(st.integers(0, 5), max_size=1),
)
def test_any_drafts_give_the_plain_answer(
    answer: list[int], drafts: list[list[int]], budget: int, eos: set[int]
) -> None:
    sequence, _ = begun([7], drafts, StopRule(budget, eos))
    run(sequence, answer)
    ends = [index + 1 for index, token in enumerate(answer[:budget]) if token in eos]
    assert sequence.output_ids == answer[: ends[0] if ends else budget]
    assert sequence.finish_reason == ("eos" if ends else "length")
    accepted = sum(attempt.num_accepted for attempt in sequence.attempts)
    # A step ends on the model's own token unless the answer ends inside its draft.
    assert sequence.num_forwards + accepted - len(sequence.output_ids) in (0, 1)
    assert all(0 <= a.num_accepted <= a.num_drafted for a in sequence.attempts)
    assert sum(span.length for span in sequence.spans) == accepted


def test_bookkeeping_by_hand() -> None:
    sequence, drafter = begun([1, 2], [[5, 6, 0], [], [8, 9]], StopRule(10, {9}))
    run(sequence, [4, 5, 6, 7, 3, 8, 9, 9])
    assert sequence.output_ids == [4, 5, 6, 7, 3, 8, 9]
    assert sequence.attempts == [Attempt(3, 2), Attempt(2, 2)]
    assert sequence.spans == [Span(1, 2, 0), Span(5, 2, 0)]
    assert (sequence.length, sequence.token_ids) == (9, [1, 2, *sequence.output_ids])
    counts = sequence.counts()
    assert counts == TurnCounts(
        2, 0, 7, 0, 4, 1, {"context": DraftCounts(2, 5, 4)}, finish_reason="eos"
    )
    steps = [([4], (0, 4)), ([5, 6, 7], (2, 7)), ([3], (0, 3)), ([8, 9], (2, 9))]
    observed = [mock.call(token_ids, Verdict(*numbers)) for token_ids, numbers in steps]
    assert drafter.observe.mock_calls == observed


def test_drafts_are_cut_to_the_width_and_the_budget() -> None:
    sequence, _ = begun([1], [[5] * 50, [5] * 50], StopRule(8))
    sequence.commit(Draft(), lambda index: 5)
    assert [len(sequence.propose(width, 0.0).token_ids) for width in (4, 40)] == [4, 6]


EARLIER, STORE = CopyOrigin.EARLIER, CopyOrigin.STORE


@pytest.mark.parametrize(
    ("tree", "native", "attempt", "spans", "counts"),
    [
        (  # 6 from the context; 7 after it from the context, or 8 from the store.
            Draft((6, 7, 8), 0, "context", parents=(-1, 0, 0), positions=(0, 1, STORE)),
            [6, 8, 0, 9],
            Attempt(3, 2),
            [Span(1, 1, 0), Span(2, 1, STORE)],
            {"context": DraftCounts(1, 2, 1), "store": DraftCounts(0, 1, 1)},
        ),
        (
            Draft((6, 7, 8), EARLIER, "earlier", (-1, 0, 1), (EARLIER, EARLIER, STORE)),
            [6, 7, 8, 9],
            Attempt(3, 3, "earlier"),
            [Span(1, 2, EARLIER), Span(3, 1, STORE)],
            {"earlier": DraftCounts(1, 2, 2), "store": DraftCounts(0, 1, 1)},
        ),
    ],
    ids=["context", "earlier"],
)
def test_a_tree_counts_its_tokens_by_their_sources(
    tree: Draft, native: list[int], attempt: Attempt, spans: list[Span], counts: Any
) -> None:
    """Before it a token, and after it a draft of a model."""
    sequence, _ = begun([1, 2], [], StopRule(10))
    sequence.commit(Draft(), lambda index: 5)
    accepted = attempt.num_accepted
    verdict = sequence.commit(tree, native.__getitem__)
    assert (verdict.num_accepted, verdict.next_token) == (accepted, 9)
    sequence.commit(Draft((4, 4), source="model"), [4, 3].__getitem__)
    assert sequence.output_ids == [5, *native[:accepted], 9, 4, 3]
    assert sequence.attempts == [attempt, Attempt(2, 1, "model")]
    assert sequence.spans == spans
    assert sequence.counts().drafts == counts | {"model": DraftCounts(1, 2, 1)}


def test_a_restarted_sequence_is_the_request_alone() -> None:
    sequence, drafter = begun([1, 2], [], StopRule(2), earlier=((5, 6), (7,)))
    run(sequence, [4, 5])
    assert isinstance(sequence.drafter, NoDrafter), "the finished sequence keeps no index"
    again = sequence.restarted()
    assert (again.prompt_ids, again.stop_rule) == ((1, 2), sequence.stop_rule)
    assert (again.output_ids, again.finish_reason, again.counts().num_forwards) == ([], None, 0)
    again.start(other := mock.Mock())
    assert other.start.mock_calls == drafter.start.mock_calls == [mock.call((1, 2), ((5, 6), (7,)))]
    with pytest.raises(AssertionError, match="restarted"):
        sequence.start(NoDrafter())


PIECES = ["a", "b", "\n", "\n\n", "ab", "Que", "stion", ":", "é", ""]


@given(
    token_ids=st.lists(st.integers(0, 8), min_size=1, max_size=30),
    stops=st.lists(st.text("abQuestion:\né", min_size=1, max_size=9), min_size=1, max_size=3),
)
@example(token_ids=[1, 9, 9, 9, 9, 9, 0, 1], stops=["ba"])  # across tokens without text
@example(token_ids=[4, 5, 6, 7, 0], stops=["bQuestion:"])  # begins inside a token
@example(token_ids=[0, 5, 6, 7], stops=["estio"])  # ends inside one
@example(token_ids=[0, 2, 2, 0], stops=["\n\n"])  # is one token, or two
def test_stop_strings_end_where_the_text_has_one(token_ids: list[int], stops: list[str]) -> None:
    def decode(token_ids: Tokens[int]) -> str:
        return "".join(PIECES[token] for token in token_ids)

    rule, contained = StopRule(100, stop_strings=stops, decode=decode), False
    for count in range(1, len(token_ids) + 1):
        if not contained:
            contained = any(stop in decode(token_ids[:count]) for stop in stops)
            assert (rule.reason(token_ids[:count]) == "stop") == contained


@given(
    st.lists(st.integers(0, 2), max_size=30),
    st.lists(st.integers(0, 2), min_size=1, max_size=20),
    st.integers(0, 260),
)
@example(start=[], loop=[1], length=33)
@example(start=[], loop=[*range(20)], length=59)
def test_every_period_of_a_loop_is_tried(start: list[int], loop: list[int], length: int) -> None:
    tokens, most = start + (loop * length)[:length], 0
    for period in range(1, len(tokens) // 3 + 1):
        same = [a == b for a, b in zip(tokens[::-1], tokens[-1 - period :: -1], strict=False)]
        count = [*same, False].index(False)
        most = max(most, count) if count >= max(32, 2 * period) else most
    assert looped_tokens(tokens) == most


def test_shares_are_of_all_tokens() -> None:
    cut = with_counts(ROW, num_tokens=100, num_looped_tokens=60, finish_reason="length")
    whole = with_counts(ROW, num_tokens=100, num_looped_tokens=0, finish_reason="eos")
    unknown = with_counts(ROW, num_tokens=100, num_looped_tokens=None, finish_reason=None)
    turns = frame([cut, whole, whole, unknown])
    figures = {metric.name: metric.figure(turns) for metric in METRICS}
    assert (figures["looped_share"], figures["cut_share"]) == (60 / 300, 1 / 3)


def bytes_decoded(token_ids: Tokens[int]) -> str:
    return bytes(token_ids).decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("prompt", "output", "span", "pieces"),
    [
        ("abc def", "abc, xyz", Span(0, 3, 0), [("abc", 0, 3), (", xyz",)]),
        ("abc def", "abc, déf", Span(5, 4, STORE), [("abc, ",), ("déf", STORE, STORE)]),
        ("abc def", "abc, xyz", Span(5, 3, EARLIER), [("abc, ",), ("xyz", EARLIER, EARLIER)]),
        ("x", "ab ab", Span(3, 2, 1), [("ab ",), ("ab", 1, 3)]),  # from the answer itself
    ],
)
def test_copies_are_pieces_of_the_answer(
    prompt: str, output: str, span: Span, pieces: list[Any]
) -> None:
    ids = [*prompt.encode()], [*output.encode()]
    prompt_text, answer, places = span_characters(bytes_decoded, *ids, [span])
    assert (prompt_text, answer, segments(answer, places)) == (prompt, output, pieces)


@given(
    st.text(min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(-1, 10)), max_size=4),
)
def test_pieces_are_the_answer(text: str, gaps: list[tuple[int, int, int]]) -> None:
    output = text.encode("utf-8", "replace")
    spans, place = [], 0
    for gap, length, source in gaps:
        if place + gap + length <= len(output):
            spans.append(Span(place + gap, length, min(source, place)))
            place += gap + length
    _, answer, places = span_characters(bytes_decoded, [*b"0123456789"], [*output], spans)
    pieces = [piece[0] for piece in segments(answer, places)]
    assert "".join(pieces) == answer == bytes_decoded(output)
    assert all(pieces)
