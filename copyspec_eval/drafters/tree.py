"""What may follow a context: a chain of the likeliest continuation, or a tree of several."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from copyspec_eval.drafters.automaton import SuffixAutomaton
from copyspec_eval.drafters.outcomes import Guess, Limits, guess_counted, guess_resumed
from copyspec_eval.drafters.recycling import Recycled, Recycler

_MORE_LIKELY, _MOST_LIKELY = 0.02, 0.97
"""By how much the probability that a resumed copy continues grows with every token, and its cap."""

_LEAST_UNCOPIED = 0.05
"""The least probability that a token follows which no source has there."""


@dataclass(slots=True)
class Matched:
    """The state of an automaton that the last `run` tokens match.

    `position` is the index of the last copied token among the automaton's, -1 before the first, and
    `weight` the probability that what follows the match is what follows at all.
    """

    automaton: SuffixAutomaton
    state: int
    run: int
    source: Literal["context", "store"]
    position: int = -1
    weight: float = 1.0

    def follower(self, path: Sequence[int]) -> Follower | None:
        """What followed the match most often, of equals the latest."""
        automaton, state = self.automaton, self.state
        # The occurrence at the end of the source has no continuation yet.
        num_followed = automaton.count[state] - (automaton.end[state] == len(automaton.token_ids))
        if num_followed <= 0:
            return self._periodic(path)
        token = automaton.best[state]
        return self._after(token, num_followed) if token >= 0 else None

    def followers(self, path: Sequence[int]) -> Iterator[Follower]:
        """All that followed the match, the most frequent first, of equals the latest."""
        automaton, state = self.automaton, self.state
        count, end = automaton.count, automaton.end
        num_followed = count[state] - (end[state] == len(automaton.token_ids))
        if num_followed <= 0:
            yield self._periodic(path)
            return
        following = automaton.next[state].items()
        ranked = sorted(
            ((count[after], end[after], token) for token, after in following), reverse=True
        )
        for _, _, token in ranked:
            if token >= 0:
                yield self._after(token, num_followed)

    def _after(self, token: int, num_followed: int) -> Follower:
        automaton, run = self.automaton, self.run
        after = automaton.next[self.state][token]
        guess = guess_counted(self.source, run, automaton.count[after], num_followed, self.weight)
        copied = Matched(automaton, after, run + 1, self.source, automaton.end[after] - 1)
        return guess, token, copied

    def _periodic(self, path: Sequence[int]) -> Follower:
        """What was copied from the end of the source continues with the draft itself."""
        position = self.position + 1
        copied = Matched(self.automaton, self.state, self.run + 1, self.source, position)
        guess = guess_counted(self.source, self.run, 1, 1, self.weight)
        return guess, path[position - len(self.automaton.token_ids)], copied


@dataclass(slots=True)
class Resumed:
    """A source behind a token that was substituted after `run` copied ones.

    `position` is the index of the last copied or substituted token among the automaton's. The
    source's next token follows with `probability`, the one after it with `later_probability`.
    """

    automaton: SuffixAutomaton
    position: int
    run: int
    probability: float
    later_probability: float

    def follower(self, path: Sequence[int]) -> Follower | None:
        position, token_ids = self.position + 1, self.automaton.token_ids
        if position >= len(token_ids) or token_ids[position] < 0:
            return None
        probability = self.later_probability
        later = min(_MOST_LIKELY, probability + _MORE_LIKELY)
        after = Resumed(self.automaton, position, self.run + 1, probability, later)
        return guess_resumed(self.run, self.probability), token_ids[position], after

    def followers(self, path: Sequence[int]) -> Iterator[Follower]:
        if follower := self.follower(path):
            yield follower


Continuation = Matched | Resumed | Recycled
"""A place that a draft has reached; `followers` gives what may follow there, likeliest first,
where `path` are the draft's tokens up to here."""

Copied = Matched | Resumed
Follower = tuple[Guess, int, Copied]
"""A guess, its token, and the continuation after it."""


@dataclass(slots=True)
class Node:
    """A draft token, the index of its parent (-1 for none), the continuation that it led to, the
    guess that it follows its parent, and the probability that it is reached and accepted.
    """

    token_id: int
    parent: int
    copied: Continuation
    guess: Guess
    probability: float


def chain(root: Matched | Resumed, limits: Limits) -> list[Node]:
    """The most frequent continuation of `root`, as far as it is worth its time."""
    nodes: list[Node] = []
    path: list[int] = []
    copied = root
    probability = 1.0
    for threshold in limits.thresholds:
        follower = copied.follower(path)
        if follower is None:
            break
        guess, token, copied = follower
        probability, value = limits.score(probability, guess)
        if value < threshold:
            break
        nodes.append(Node(token, len(nodes) - 1, copied, guess, probability))
        path.append(token)
    # All are copied from where they last occurred together.
    for distance, node in enumerate(reversed(nodes)):
        node.copied.position = nodes[-1].copied.position - distance
    return nodes


def grow(
    roots: Iterable[Continuation], limits: Limits, recycler: Recycler | None = None
) -> list[Node]:
    """The tree of the likeliest tokens that are worth their time.

    The token with the highest probability of being reached and accepted is taken next, unless it is
    out of limits, whose thresholds count in this order; a parent comes before its children. Where
    two continuations propose the same token, one node stands for both. A recycler continues every
    branch with uncopied tokens.
    """
    tree = _Growing(limits, recycler)
    covered = [tree.push(1.0, -1, root) for root in roots]
    tree.push_recycled(1.0, -1, max(covered, default=0.0))
    while tree.heap and len(tree.nodes) < len(limits.thresholds):
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
        """Offer what follows node `parent`, and add up the probabilities of what is offered."""
        thresholds, covered = self._limits.thresholds, 0.0
        threshold = thresholds[len(self.nodes)] if len(self.nodes) < len(thresholds) else 1.0
        for guess, token, after in continuation.followers(self._paths[parent]):
            probability, value = self._limits.score(reached, guess)
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
            uncopied = max(_LEAST_UNCOPIED, 1 - covered / reached)
            for recycled in self._recycler.after(self._paths[parent], uncopied):
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
