"""Answers that repeat themselves until the token budget ends them: copied for nearly nothing."""

from collections.abc import Sequence

_LEAST_REPEATS, _LEAST_TOKENS = 3, 32


def looped_tokens(token_ids: Sequence[int]) -> int:
    """How many tokens at the end repeat those before them, period by period; 0 without a loop.

    A loop is at least three periods long, and has 32 tokens beyond its first one; of several
    periods, the one that explains most counts. It takes time in proportion to the answer.

    >>> looped_tokens([7, *[1, 2] * 20]), looped_tokens([7, 1, 2, 1, 2])
    (38, 0)
    """
    looped = (
        count
        for period, count in enumerate(_prefix_lengths(token_ids[::-1]))
        if period and count >= max(_LEAST_TOKENS, (_LEAST_REPEATS - 1) * period)
    )
    return max(looped, default=0)


def _prefix_lengths(tokens: Sequence[int]) -> list[int]:
    """For each place, how many tokens from there on are those of the beginning (Z-function)."""
    lengths = [len(tokens)] + [0] * (len(tokens) - 1) if tokens else []
    start = end = 0
    for place in range(1, len(tokens)):
        length = min(lengths[place - start], end - place) if place < end else 0
        while place + length < len(tokens) and tokens[length] == tokens[place + length]:
            length += 1
        lengths[place] = length
        if place + length > end:
            start, end = place, place + length
    return lengths
