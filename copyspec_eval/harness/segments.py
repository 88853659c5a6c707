"""An answer's text in pieces, each with the place that it was copied from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from copyspec_eval.records import Segment
from copyspec_eval.types import Span

Decode = Callable[[Sequence[int]], str]

_INCOMPLETE = "\ufffd"


def segments(
    decode: Decode, prompt_ids: Sequence[int], output_ids: Sequence[int], spans: Sequence[Span]
) -> tuple[str, tuple[Segment, ...]]:
    """The prompt, and the answer in copied and own pieces.

    Args:
        decode: text of token ids, special tokens included.
        prompt_ids: the prompt.
        output_ids: the answer.
        spans: what of it was copied, in order.

    Returns:
        the prompt's text, and `(text, start, end)` of each piece: where its source stands in the
        characters of prompt and answer together; `(text, -1, -1)` for the model's own, and
        `(text, -2, -2)` for what an earlier answer of the run gave.
    """
    asked = len(prompt_ids)
    sources = [place for s in spans if s.source >= 0 for place in (s.source, s.source + s.length)]
    bounds = [place for s in spans for place in (s.start, s.start + s.length)]
    prompt, in_prompt = text_and_places(decode, prompt_ids, (p for p in sources if p <= asked))
    said = [*bounds, *(place - asked for place in sources if place > asked)]
    answer, in_answer = text_and_places(decode, output_ids, said)

    def character(place: int) -> int:
        return in_prompt[place] if place <= asked else len(prompt) + in_answer[place - asked]

    pieces: list[Segment] = []
    done = 0
    for span in spans:
        start, end = in_answer[span.start], in_answer[span.start + span.length]
        pieces.append((answer[done:start], -1, -1))
        if span.source < 0:
            pieces.append((answer[start:end], -2, -2))
        else:
            source = character(span.source), character(span.source + span.length)
            pieces.append((answer[start:end], *source))
        done = end
    pieces.append((answer[done:], -1, -1))
    return prompt, tuple(piece for piece in pieces if piece[0])


def text_and_places(
    decode: Decode, token_ids: Sequence[int], places: Iterable[int]
) -> tuple[str, dict[int, int]]:
    """The text of tokens, and how many characters of it the first so many tokens give.

    A character of several tokens counts where its last one is there. What lies between two places
    is decoded at once, after the piece before it, so the time is linear.

    >>> decode = lambda ids: bytes(ids).decode("utf-8", "replace")
    >>> text_and_places(decode, list("dé!".encode()), [1, 2, 3])
    ('dé!', {0: 0, 1: 1, 2: 1, 3: 2, 4: 3})
    """
    parts: list[str] = []
    characters = {0: 0}
    length = shown = done = 0
    for place in sorted({*places, len(token_ids)} - {0}):
        before = decode(token_ids[shown:done])
        now = decode(token_ids[shown:place])
        last = place == len(token_ids)
        if len(now) > len(before) and (last or not now.endswith(_INCOMPLETE)):
            parts.append(now[len(before) :])
            length += len(now) - len(before)
            shown, done = done, place
            characters[place] = length
        else:
            whole = now.rstrip(_INCOMPLETE)
            characters[place] = length + max(0, len(whole) - len(before))
    return "".join(parts), characters
