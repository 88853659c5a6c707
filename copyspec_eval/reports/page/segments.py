"""An answer's text in pieces, each with the place that it was copied from."""

from __future__ import annotations

from copyspec_eval.records import TurnRecord

Segment = tuple[str] | tuple[str, int, int]
"""A piece of an answer: its text and, if it was copied, where its source starts and ends in the
characters of prompt and answer together; both negative for a copy from another answer and for what
was recycled, see `types.OF_STORE`."""


def segments(record: TurnRecord) -> list[Segment]:
    """The answer with drafts in copied and generated pieces, none of them empty.

    An answer "abcd" whose "bc" was copied from the prompt's characters 5 and 6 is
    `[("a",), ("bc", 5, 7), ("d",)]`.
    """
    answer, pieces, done = record.answer or record.text, list[Segment](), 0
    for start, end, source_start, source_end in record.span_characters:
        pieces += [(answer[done:start],), (answer[start:end], source_start, source_end)]
        done = end
    return [piece for piece in [*pieces, (answer[done:],)] if piece[0]]
