"""Several continuations at once: the likeliest tokens first, whichever branch they are on."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from copyspec_eval.drafters.automaton import SuffixAutomaton
from copyspec_eval.drafters.outcomes import Guess, Limits, guess_counted, guess_resumed
from copyspec_eval.drafters.recycling import Recycler

KEPT_MORE, KEPT_MOST = 0.02, 0.97
"""By how much the probability that a resumed copy continues grows with every token, and its cap."""

_LEAST_LEFT = 0.05
"""What is left of any copy for another token to follow."""


class Continuation(Protocol):
    """A position in a source that a draft has reached by copying.

    Attributes:
        source_ids: the tokens of the source.
        position: index there of the last copied token.
        run: how many tokens up to here equal those of the source.
    """

    @property
    def source_ids(self) -> Sequence[int]: ...
    @property
    def position(self) -> int: ...
    @property
    def run(self) -> int: ...

    def followers(self, path: Sequence[int]) -> Iterator[tuple[Guess, int, Continuation]]:
        """What may follow: its guess, the token and the continuation after it, likeliest first.

        Args:
            path: the draft's tokens up to here.
        """


@dataclass(slots=True)
class Node:
    """A draft token, the index of its parent (-1 for none), where it was copied from, the guess
    that it follows its parent, and the probability that it is reached and accepted.
    """

    token_id: int
    parent: int
    copied: Continuation
    guess: Guess
    probability: float


def grow(
    roots: Iterable[Continuation], limits: Limits, recycler: Recycler | None = None
) -> list[Node]:
    """The tree of the likeliest tokens that are worth their time.

    The token with the highest probability of being reached and accepted is taken next, unless it is
    out of limits. Where two continuations propose the same token, one node stands for both.

    Args:
        roots: where the draft may continue from.
        limits: the thresholds rise; they count in the order in which nodes are taken.
        recycler: continues every branch, beside what is copied.

    Returns:
        nodes in the order in which they were taken; a parent comes before its children.
    """
    tree = _Growing(limits, recycler)
    covered = [tree.push(1.0, -1, root) for root in roots]
    tree.push_recycled(1.0, -1, max(covered, default=0.0))
    while tree.heap and not tree.is_full:
        tree.take()
    return tree.nodes


class _Growing:
    """A tree, and what may be taken into it next; see `grow`."""

    def __init__(self, limits: Limits, recycler: Recycler | None) -> None:
        self.nodes: list[Node] = []
        # The count breaks ties by age, and keeps the heap from comparing continuations.
        self.heap: list[tuple[float, int, float, int, int, Guess, Continuation]] = []
        self._num_pushed = 0
        self._limits = limits
        self._recycler = recycler
        # The tokens of the branch up to each node; -1 has none.
        self._paths: dict[int, tuple[int, ...]] = {-1: ()}
        self._taken: dict[tuple[int, int], int] = {}

    def push(self, reached: float, parent: int, continuation: Continuation) -> float:
        """Offer what follows node `parent`, which has the probability `reached`.

        Returns:
            the probability that one of the tokens is reached and accepted.
        """
        limits, covered = self._limits, 0.0
        threshold = limits.thresholds[len(self.nodes)] if not self.is_full else 1.0
        for guess, token, after in continuation.followers(self._paths[parent]):
            probability, value = limits.weigh(reached, guess)
            if value < threshold:
                break
            self._num_pushed += 1
            offered = (-probability, self._num_pushed, value, parent, token, guess, after)
            heapq.heappush(self.heap, offered)
            covered += probability
        return covered

    def push_recycled(self, reached: float, parent: int, covered: float) -> None:
        """Offer what the model held for likely, in the place that `covered` leaves."""
        if self._recycler is not None:
            left = max(_LEAST_LEFT, 1 - covered / reached)
            for recycled in self._recycler.behind(self._paths[parent], left):
                self.push(reached, parent, recycled)

    def take(self) -> None:
        """Take the likeliest of what was offered, unless it is not worth its time any more."""
        negative, _, value, parent, token, guess, copied = heapq.heappop(self.heap)
        if value < self._limits.thresholds[len(self.nodes)]:
            return
        if (parent, token) in self._taken:
            self.push(-negative, self._taken[parent, token], copied)
            return
        node = self._taken[parent, token] = len(self.nodes)
        self.nodes.append(Node(token, parent, copied, guess, -negative))
        self._paths[node] = (*self._paths[parent], token)
        covered = self.push(-negative, node, copied)
        self.push_recycled(-negative, node, covered)

    @property
    def is_full(self) -> bool:
        """Whether no node may be taken any more."""
        return len(self.nodes) >= len(self._limits.thresholds)


@dataclass(slots=True)
class Matched:
    """The state of an automaton that the last `run` tokens match; see `Continuation`.

    `weight` is the probability that what follows the match is what follows at all.
    """

    automaton: SuffixAutomaton
    state: int
    run: int
    source: Literal["context", "store"]
    weight: float = 1.0
    position: int = -1

    @property
    def source_ids(self) -> Sequence[int]:
        """The automaton's tokens."""
        return self.automaton.token_ids

    def followers(self, path: Sequence[int]) -> Iterator[tuple[Guess, int, Continuation]]:
        """What followed the state's substrings, the most frequent first, of equals the latest."""
        automaton, state, run, source = self.automaton, self.state, self.run, self.source
        count, end, num_tokens = automaton.count, automaton.end, len(automaton.token_ids)
        num_followed = count[state] - (end[state] == num_tokens)
        if num_followed <= 0:
            # The end of the source: what was copied from there continues with the draft itself.
            position = self.position + 1
            after_next = Matched(automaton, state, run + 1, source, position=position)
            guess = guess_counted(source, run, 1, 1, self.weight)
            yield guess, path[position - num_tokens], after_next
            return
        ranked = sorted(
            (
                (count[after], end[after], token, after)
                for token, after in automaton.next[state].items()
            ),
            reverse=True,
        )
        for times, last_end, token, after in ranked:
            if token >= 0:
                matched = Matched(automaton, after, run + 1, source, position=last_end - 1)
                yield guess_counted(source, run, times, num_followed, self.weight), token, matched


@dataclass(slots=True)
class Resumed:
    """A source behind a token that was substituted; see `Continuation`.

    Attributes:
        run: the substituted token does not count.
        probability: that the source's next token follows.
        kept: the same of the one after; it grows from there.
    """

    source_ids: Sequence[int]
    position: int
    run: int
    probability: float
    kept: float

    def followers(self, path: Sequence[int]) -> Iterator[tuple[Guess, int, Continuation]]:
        """The source's next token."""
        position = self.position + 1
        if position < len(self.source_ids) and self.source_ids[position] >= 0:
            kept = min(KEPT_MOST, self.kept + KEPT_MORE)
            after = Resumed(self.source_ids, position, self.run + 1, self.kept, kept)
            yield guess_resumed(self.run, self.probability), self.source_ids[position], after
