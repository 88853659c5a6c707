"""An answer's text in pieces, each with the place that it was copied from."""

from __future__ import annotations

from collections.abc import Iterable

from copyspec_eval.records import SpanCharacters

Segment = tuple[str] | tuple[str, int, int]
"""A piece of an answer: its text and, if it was copied, where its source starts and ends in the
characters of prompt and answer together; both negative for a copy from another answer and for what
was recycled, see `types.CopyOrigin`."""


def segments(answer: str, places: Iterable[SpanCharacters]) -> list[Segment]:
    """The answer with drafts in copied and generated pieces, none of them empty.

    >>> segments("abcd", [SpanCharacters(1, 3, source_start=5, source_end=7)])
    [('a',), ('bc', 5, 7), ('d',)]
    """
    pieces, done = list[Segment](), 0
    for start, end, source_start, source_end in places:
        pieces += [(answer[done:start],), (answer[start:end], source_start, source_end)]
        done = end
    return [piece for piece in [*pieces, (answer[done:],)] if piece[0]]
