"""What the model itself held for likely, drafted where nothing is copied."""

from collections.abc import Iterator, Sequence
from typing import Literal

from copyspec_eval.drafters.outcomes import Guess, guess_recycled
from copyspec_eval.types import Verdict

NUM_LIKELIEST = 8  # how many of each token's likeliest successors are recycled

# Of each token, what was likeliest to follow in the last logits after it, the likeliest first: at
# most a row of a few hundred bytes for each token of the vocabulary.
Successors = dict[int, Sequence[int]]
# As `tree.Follower`, but that no source goes on behind a recycled token.
Ranked = Iterator[tuple[Guess, int, None]]


class Recycler:
    """Continues the branches of one request's trees with what the model held for likely.

    After each token of a tree its successors, as they often follow again (Token Recycling, arXiv
    2408.08696); and at the beginning the runners-up of the logits that chose the last token, for
    what a model chooses late it often held for likely before (LogitSpec, arXiv 2507.01449).
    `successors` are those of the run so far; this request's replace them.

    The model reads 5, holds 6, 7 and 8 for likeliest and chooses 6:

    >>> recycler = Recycler({})
    >>> recycler.start([5])
    >>> recycler.observe([], Verdict(0, next_token=6, path=(), likeliest=[(6, 7, 8)]))
    >>> def tokens(path):
    ...     return [token for offered in recycler.after(path, 1.0) for _, token, _ in offered]
    >>> tokens(path=()), tokens(path=(7,)), tokens(path=(7, 5))
    ([7, 8], [], [6, 7, 8])
    """

    def __init__(self, successors: Successors) -> None:
        self._successors = successors
        self._last = -1
        self._runners_up: Sequence[int] = ()

    def start(self, prompt_ids: Sequence[int]) -> None:
        self._last = prompt_ids[-1] if prompt_ids else -1

    def observe(self, draft_ids: Sequence[int], verdict: Verdict) -> None:
        """Note what was likeliest after the last token and each of a tree's, or accepted ones."""
        rows = list(zip((self._last, *draft_ids), verdict.likeliest, strict=False))
        nodes = range(verdict.num_accepted) if verdict.path is None else verdict.path
        accepted = rows[:1] + [rows[1 + node] for node in nodes if 1 + node < len(rows)]
        # Rejected tokens were read behind others than the answer's, so accepted ones replace them.
        self._successors.update([*rows, *accepted])
        likeliest = accepted[-1][1] if accepted else ()
        self._runners_up = [token for token in likeliest if token != verdict.next_token]
        self._last = verdict.next_token

    def after(self, path: Sequence[int], uncopied: float) -> Iterator[Ranked]:
        successors = self._successors.get(path[-1] if path else self._last, ())
        yield _ranked("successor", successors, uncopied)
        if not path:
            yield _ranked("runner-up", self._runners_up, uncopied)


def _ranked(
    kind: Literal["successor", "runner-up"], token_ids: Sequence[int], uncopied: float
) -> Ranked:
    for rank, token in enumerate(token_ids):
        yield guess_recycled(kind, rank, uncopied), token, None
