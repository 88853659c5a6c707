"""Where the copied stretches of an answer and their sources stand, and the answer in pieces."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from copyspec_eval.records import Segment, segments
from copyspec_eval.session.span_characters import span_characters, text_and_offsets
from copyspec_eval.types import CopyOrigin, Span


def decode(token_ids: Sequence[int]) -> str:
    """Tokens are bytes."""
    return bytes(token_ids).decode("utf-8", "replace")


def pieces_of(
    prompt: bytes, output: bytes, spans: Sequence[Span]
) -> tuple[str, str, list[Segment]]:
    prompt_text, answer, places = span_characters(decode, list(prompt), list(output), spans)
    return prompt_text, answer, segments(answer, places)


def test_by_hand() -> None:
    spans = [Span(0, 3, 0), Span(5, 4, -1)]
    prompt, answer, pieces = pieces_of(b"abc def", "abc, déf".encode(), spans)
    assert (prompt, answer) == ("abc def", "abc, déf")
    assert pieces == [("abc", 0, 3), (", ",), ("déf", -1, -1)]
    _, _, pieces = pieces_of(b"abc def", b"abc, xyz", [Span(5, 3, CopyOrigin.EARLIER)])
    assert pieces == [("abc, ",), ("xyz", CopyOrigin.EARLIER, CopyOrigin.EARLIER)]


def test_an_answer_copied_from_itself() -> None:
    prompt, answer, pieces = pieces_of(b"x", b"ab ab", [Span(3, 2, 1)])
    assert pieces == [("ab ",), ("ab", 1, 3)]
    assert (prompt + answer)[1:3] == "ab"


@given(st.text(max_size=30), st.data())
def test_offsets_are_those_of_whole_characters(text: str, data: st.DataObject) -> None:
    token_ids = list(text.encode("utf-8", "replace"))
    places = data.draw(st.lists(st.integers(0, len(token_ids))))
    decoded, offsets = text_and_offsets(decode, token_ids, places)
    assert decoded == decode(token_ids)
    assert offsets.keys() == {0, *places, len(token_ids)}
    for place, offset in offsets.items():
        assert offset == len(bytes(token_ids[:place]).decode("utf-8", "ignore"))


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
    _, answer, pieces = pieces_of(b"0123456789", output, spans)
    assert answer == decode(list(output))
    assert "".join(piece[0] for piece in pieces) == answer
    assert all(piece[0] for piece in pieces)
