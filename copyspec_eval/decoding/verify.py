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
    if draft.parents is not None:
        return _verify_tree(draft.token_ids, draft.parents, choose)
    for index, drafted in enumerate(draft.token_ids):
        token = choose(index)
        if token != drafted:
            return Verdict(index, token)
    return Verdict(len(draft.token_ids), choose(len(draft.token_ids)))


def _verify_tree(
    token_ids: tuple[int, ...], parents: tuple[int, ...], choose: Callable[[int], int]
) -> Verdict:
    children = {
        (parent, token): node
        for node, (parent, token) in enumerate(zip(parents, token_ids, strict=True))
    }
    path: list[int] = []
    node = -1
    while True:
        token = choose(node + 1)
        child = children.get((node, token))
        if child is None:
            return Verdict(len(path), token, tuple(path))
        path.append(child)
        node = child
