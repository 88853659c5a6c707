"""The pieces of an answer, and the characters that they were copied from."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from copyspec_eval.harness.segments import segments, text_and_places
from copyspec_eval.types import Span


def decode(token_ids: Sequence[int]) -> str:
    """Tokens are bytes."""
    return bytes(token_ids).decode("utf-8", "replace")


def test_by_hand() -> None:
    prompt = list(b"abc def")
    output = list("abc, déf".encode())
    spans = [Span(0, 3, 0), Span(5, 4, -1)]
    text, pieces = segments(decode, prompt, output, spans)
    assert text == "abc def"
    assert pieces == (("abc", 0, 3), (", ", -1, -1), ("déf", -2, -2))


def test_an_answer_copied_from_itself() -> None:
    text, pieces = segments(decode, list(b"x"), list(b"ab ab"), [Span(3, 2, 1)])
    assert pieces == (("ab ", -1, -1), ("ab", 1, 3))
    assert (text + "ab ab")[1:3] == "ab"


@given(st.text(max_size=30), st.data())
def test_places_are_those_of_whole_characters(text: str, data: st.DataObject) -> None:
    token_ids = list(text.encode("utf-8", "replace"))
    places = data.draw(st.lists(st.integers(0, len(token_ids))))
    found, characters = text_and_places(decode, token_ids, places)
    assert found == decode(token_ids)
    assert characters.keys() == {0, *places, len(token_ids)}
    for place, number in characters.items():
        assert number == len(bytes(token_ids[:place]).decode("utf-8", "ignore"))


@given(
    st.text(min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(-1, 10)), max_size=4),
)
def test_pieces_are_the_answer(text: str, gaps: list[tuple[int, int, int]]) -> None:
    output = list(text.encode("utf-8", "replace"))
    spans, place = [], 0
    for gap, length, source in gaps:
        if place + gap + length <= len(output):
            spans.append(Span(place + gap, length, min(source, place)))
            place += gap + length
    _, pieces = segments(decode, list(b"0123456789"), output, spans)
    assert "".join(piece for piece, _, _ in pieces) == decode(output)
