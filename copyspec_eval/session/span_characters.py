"""Where the copied stretches of an answer, and their sources, stand in the texts."""

from collections.abc import Callable, Iterable, Sequence

from copyspec_eval.records import SpanCharacters
from copyspec_eval.types import Span

Decode = Callable[[Sequence[int]], str]

_INCOMPLETE = "\ufffd"


def span_characters(
    decode: Decode, prompt_ids: Sequence[int], output_ids: Sequence[int], spans: Sequence[Span]
) -> tuple[str, str, tuple[SpanCharacters, ...]]:
    """The texts of prompt and answer, special tokens included, and each span's place in them."""
    length = len(prompt_ids)
    sources = [place for s in spans if s.source >= 0 for place in (s.source, s.source + s.length)]
    bounds = [place for s in spans for place in (s.start, s.start + s.length)]
    prompt, in_prompt = text_and_offsets(decode, prompt_ids, (p for p in sources if p <= length))
    in_output = [*bounds, *(place - length for place in sources if place > length)]
    answer, in_answer = text_and_offsets(decode, output_ids, in_output)

    def character(place: int) -> int:
        return in_prompt[place] if place <= length else len(prompt) + in_answer[place - length]

    places = []
    for start, tokens, source in spans:
        ends = (character(source), character(source + tokens)) if source >= 0 else (source, source)
        places.append(SpanCharacters(in_answer[start], in_answer[start + tokens], *ends))
    return prompt, answer, tuple(places)


def text_and_offsets(
    decode: Decode, token_ids: Sequence[int], places: Iterable[int]
) -> tuple[str, dict[int, int]]:
    """The text of tokens, and how many of its characters the first n tokens give, n of `places`.

    A character of several tokens counts with the last of them. Tokens between two places are
    decoded together, after the piece before them, so the time is linear.

    >>> decode = lambda ids: bytes(ids).decode("utf-8", "replace")
    >>> text_and_offsets(decode, list("dé!".encode()), [1, 2, 3])
    ('dé!', {0: 0, 1: 1, 2: 1, 3: 2, 4: 3})
    """
    parts: list[str] = []
    characters = {0: 0}
    length = context = done = 0
    for place in sorted({*places, len(token_ids)} - {0}):
        before = decode(token_ids[context:done])
        now = decode(token_ids[context:place])
        is_whole = place == len(token_ids) or not now.endswith(_INCOMPLETE)
        if len(now) > len(before) and is_whole:
            parts.append(now[len(before) :])
            length += len(now) - len(before)
            context, done = done, place
            characters[place] = length
        else:
            complete = now.rstrip(_INCOMPLETE)
            characters[place] = length + max(0, len(complete) - len(before))
    return "".join(parts), characters
