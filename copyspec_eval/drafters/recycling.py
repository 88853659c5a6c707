"""What the model itself held for likely, drafted where nothing is copied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from copyspec_eval.drafters.outcomes import Guess, guess_recycled
from copyspec_eval.types import Verdict

NUM_KEPT = 8
"""Of each token, how many likeliest successors are kept."""

Kind = Literal["successor", "runner-up"]


class Successors:
    """Of each token, what was likeliest to follow in the last logits seen after it.

    Token Recycling (arXiv 2408.08696): what a model held for likely after a token, it often does
    again. At most a row of a few hundred bytes for each token of the vocabulary.

    >>> successors = Successors()
    >>> successors.see([(5, (6, 7, 8)), (6, (9, 5, 7))])
    >>> successors.see([(6, (4, 9, 5))])
    >>> successors.after(5), successors.after(6), successors.after(4)
    ((6, 7, 8), (4, 9, 5), ())
    """

    def __init__(self) -> None:
        self._rows: dict[int, Sequence[int]] = {}

    def see(self, rows: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Replace the rows of tokens, each by those that were likeliest after it now."""
        self._rows.update(rows)

    def after(self, token: int) -> Sequence[int]:
        """The likeliest first; none if the model never read the token behind a prompt."""
        return self._rows.get(token, ())


class Recycler:
    """Continues the branches of one request's trees with what the model held for likely.

    Behind each token of a tree its successors; and at the beginning the runners-up of the logits
    that chose the last token, for what a model chooses late it often held for likely before
    (LogitSpec, arXiv 2507.01449).

    Args:
        successors: of the run so far; this request's replace them.

    The model reads 5, holds 6, 7 and 8 for likeliest and chooses 6:

    >>> recycler = Recycler(Successors())
    >>> recycler.start([5])
    >>> recycler.observe([], Verdict(0, next_token=6, path=(), likeliest=[(6, 7, 8)]))
    >>> def tokens(path):
    ...     return [
    ...         token
    ...         for recycled in recycler.behind(path, left=1.0)
    ...         for _, token, _ in recycled.followers(path)
    ...     ]
    >>> tokens(path=()), tokens(path=(7,)), tokens(path=(7, 5))
    ([7, 8], [], [6, 7, 8])
    """

    def __init__(self, successors: Successors) -> None:
        self._successors = successors
        self._last = -1
        self._runners_up: Sequence[int] = ()

    def start(self, prompt_ids: Sequence[int]) -> None:
        """Begin behind a prompt."""
        self._last = prompt_ids[-1] if prompt_ids else -1

    def observe(self, draft_ids: Sequence[int], verdict: Verdict) -> None:
        """Note what was likeliest after the last token and each of the draft's.

        Args:
            draft_ids: the tokens of the tree that was verified; of a chain, those accepted.
            verdict: on it.
        """
        rows = list(zip((self._last, *draft_ids), verdict.likeliest, strict=False))
        nodes = range(verdict.num_accepted) if verdict.path is None else verdict.path
        accepted = rows[:1] + [rows[1 + node] for node in nodes if 1 + node < len(rows)]
        self._successors.see(rows)
        # Rejected tokens were read behind others than the answer's, so that these come last.
        self._successors.see(accepted)
        held = accepted[-1][1] if accepted else ()
        self._runners_up = [token for token in held if token != verdict.next_token]
        self._last = verdict.next_token

    def behind(self, path: Sequence[int], left: float) -> Iterator[Recycled]:
        """What may follow a branch.

        Args:
            path: its tokens.
            left: the probability that nothing copied follows it.
        """
        yield Recycled(self._successors.after(path[-1] if path else self._last), "successor", left)
        if not path:
            yield Recycled(self._runners_up, "runner-up", left)


@dataclass(frozen=True, slots=True)
class Recycled:
    """Tokens that the model held for likely, the likeliest first; see `tree.Continuation`.

    Attributes:
        token_ids: see above.
        kind: whether it did so after the same token, or one token earlier.
        left: as of `Recycler.behind`.
        source_ids, position, run: nothing is copied.
    """

    token_ids: Sequence[int]
    kind: Kind
    left: float
    source_ids: Sequence[int] = ()
    position: int = -1
    run: int = 1

    def followers(self, path: Sequence[int]) -> Iterator[tuple[Guess, int, Recycled]]:
        """Each of them."""
        for rank, token in enumerate(self.token_ids):
            yield guess_recycled(self.kind, rank, self.left), token, _NOTHING


_NOTHING = Recycled((), "successor", 0.0)
"""Behind a recycled token no source goes on; `grow` asks what may follow it."""
