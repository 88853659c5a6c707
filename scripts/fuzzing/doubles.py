"""Drafters that know the plain answer: their drafts are right, wrong, or right for a while."""

import random
from collections.abc import Sequence

from copyspec_eval.types import Draft, Verdict

CHAINS = ("right", "wrong", "partly right", "junk", "ends of the vocabulary", "too long")
TREE = "tree"


class ScriptedDrafter:
    """Drafts of random lengths, at times none, made from the answer that plain decoding gave.

    Args:
        double: one of `CHAINS`, or `TREE`.
        answer: of plain decoding; drafts go on with junk where it has ended.
        vocabulary: number of tokens.
        source: of random numbers.
    """

    def __init__(
        self, double: str, answer: Sequence[int], vocabulary: int, source: random.Random
    ) -> None:
        self._double = double
        self._rest = list(answer)
        self._vocabulary = vocabulary
        self._random = source

    def start(self, prompt_ids: Sequence[int], earlier: Sequence[Sequence[int]] = ()) -> None:
        """Nothing to prepare."""

    def propose(self, budget: int, longest: int, threshold: float) -> Draft:
        """A draft, longer than asked for if it is to be too long."""
        if self._random.random() < 0.15:
            return Draft()
        most = min(budget, longest)
        if self._double == TREE:
            return self._tree(most)
        if self._double == "too long":
            return Draft(tuple(self._right(most + self._random.randint(1, 60))))
        length = most if self._random.random() < 0.5 else self._random.randint(0, most)
        return Draft(tuple(self._chain(length)))

    def observe(self, token_ids: Sequence[int], verdict: Verdict) -> None:
        """The answer's next tokens were committed."""
        del self._rest[: len(token_ids)]

    def finish(self) -> None:
        """Nothing to keep."""

    def _chain(self, length: int) -> list[int]:
        if self._double == "junk":
            return [self._any() for _ in range(length)]
        if self._double == "ends of the vocabulary":
            return [self._random.choice((0, self._vocabulary - 1)) for _ in range(length)]
        tokens = self._right(length)
        if self._double == "wrong":
            return [(token + 1) % self._vocabulary for token in tokens]
        if self._double == "partly right" and tokens:
            # Wrong by one token at times, so that a twin takes the place of the right one.
            place = self._random.randrange(length)
            tokens[place] = self._random.choice((self._any(), tokens[place] ^ 1))
        return tokens

    def _tree(self, most: int) -> Draft:
        """Branches in random order, one of them right for a while."""
        right = self._right(most)
        token_ids: list[int] = []
        parents: list[int] = []
        depths = {-1: 0}  # of the nodes on the right branch, and of the root
        taken: set[tuple[int, int]] = set()
        for _ in range(self._random.randint(0, 2 * most)):
            parent = self._random.randrange(-1, len(token_ids))
            depth = depths.get(parent)
            is_right = depth is not None and depth < most and self._random.random() < 0.6
            token = right[depth or 0] if is_right else self._any()
            if len(token_ids) == most or (parent, token) in taken:
                continue
            if depth is not None and depth < most and token == right[depth]:
                depths[len(token_ids)] = depth + 1
            taken.add((parent, token))
            token_ids.append(token)
            parents.append(parent)
        if not token_ids:
            return Draft()
        positions = (-1,) * len(token_ids)
        return Draft(tuple(token_ids), source="store", parents=tuple(parents), positions=positions)

    def _right(self, length: int) -> list[int]:
        tokens = self._rest[:length]
        return tokens + [self._any() for _ in range(length - len(tokens))]

    def _any(self) -> int:
        return self._random.randrange(self._vocabulary)
