"""Accept or reject: the rule that keeps every output the model's own."""

from collections.abc import Callable

from copyspec_eval.types import Draft, Verdict


def verify(draft: Draft, choose: Callable[[int], int]) -> Verdict:
    """Accept the draft's tokens for as long as the model chooses the same ones.

    `choose(0)` is the model's own token before the draft and `choose(i)` the one after draft token
    `i - 1`; it is called in order, and only after the tokens that lead there were accepted. In a
    tree the walk continues with the child that the model chooses.

    A `choose` that draws from the model's distribution p accepts a draft token x with probability
    p(x), and replaces a rejected one by y given y ≠ x, so each emitted token has distribution p.
    This is min(1, p/q) of Leviathan et al. (arXiv 2211.17192) for q(x) = 1.

    >>> verify(Draft((7, 8, 9)), lambda i: [7, 8, 4, 5][i])
    Verdict(num_accepted=2, next_token=4, path=None)
    >>> verify(Draft((7, 8, 6), parents=(-1, 0, -1)), lambda i: [6, 0, 0, 5][i])  # 7 8, or 6
    Verdict(num_accepted=1, next_token=5, path=(2,))
    """
    parents = range(-1, len(draft.token_ids) - 1) if draft.parents is None else draft.parents
    children = {
        (parent, token): node
        for node, (parent, token) in enumerate(zip(parents, draft.token_ids, strict=True))
    }
    path: list[int] = []
    node = -1
    while (child := children.get((node, token := choose(node + 1)))) is not None:
        path.append(child)
        node = child
    return Verdict(len(path), token, None if draft.parents is None else tuple(path))
