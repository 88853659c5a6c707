"""Accept or reject: the rule that keeps every output the model's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from copyspec_eval.types import Verdict


def verify(draft_ids: Sequence[int], choose: Callable[[int], int]) -> Verdict:
    """Keep the draft's tokens for as long as the model chooses the same ones.

    `choose(i)` is the model's own token after the first `i` draft tokens; it is asked in order and
    only while all before it were accepted, so it may assume that they were.

    Greedy decoding: `choose` is the argmax, and the output is that of plain decoding. Sampling:
    `choose(i)` draws y from the model's distribution p. A draft token x is then accepted with
    probability p(x), and a rejected one is replaced by y given y ≠ x, whose distribution is p
    without x, renormalised; so each emitted token has distribution p exactly. This is the rule
    min(1, p/q) of Leviathan et al. (arXiv 2211.17192) for a draft that puts q(x) = 1 on one token.

    >>> verify([7, 8, 9], lambda i: [7, 8, 4, 5][i])
    Verdict(num_accepted=2, next_token=4)
    >>> verify([], lambda i: 4)
    Verdict(num_accepted=0, next_token=4)
    """
    for index, drafted in enumerate(draft_ids):
        token = choose(index)
        if token != drafted:
            return Verdict(index, token)
    return Verdict(len(draft_ids), choose(len(draft_ids)))
