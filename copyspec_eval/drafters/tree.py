"""What may follow a context: a chain of the likeliest continuation, or a tree of several."""

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from copyspec_eval.drafters.automaton import SuffixAutomaton
from copyspec_eval.drafters.outcomes import Guess, Limits, guess_counted, guess_resumed

# By how much the probability that a resumed copy continues grows with every token, and its cap.
_MORE_LIKELY, _MOST_LIKELY = 0.02, 0.97


@dataclass(slots=True)
class Matched:
    """The state of an automaton that the last `run` tokens match."""

    automaton: SuffixAutomaton
    state: int
    run: int
    source: Literal["context", "store"]
    position: int = -1  # of the last copied token among the automaton's; -1 before the first
    weight: float = 1.0  # the probability that what follows the match is what follows at all

    def followers(self, path: Sequence[int]) -> "Iterator[Follower]":
        """All that followed the match, the most frequent first, of equals the latest."""
        automaton, state = self.automaton, self.state
        count, end = automaton.count, automaton.end
        # The occurrence at the end of the source has no continuation yet.
        num_followed = count[state] - (end[state] == len(automaton.token_ids))
        if num_followed <= 0:
            yield self._periodic(path)
            return
        usual, following = automaton.best[state], automaton.next[state]
        if usual in following:
            yield self._after(usual, num_followed)
        # Only a tree asks for the others, of which a short match has hundreds.
        others = [(count[after], end[after], token) for token, after in following.items()]
        for _, _, token in sorted(others, reverse=True):
            if token != usual:
                yield self._after(token, num_followed)

    def _after(self, token: int, num_followed: int) -> "Follower":
        automaton, run = self.automaton, self.run
        after = automaton.next[self.state][token]
        guess = guess_counted(self.source, run, automaton.count[after], num_followed, self.weight)
        copied = Matched(automaton, after, run + 1, self.source, automaton.end[after] - 1)
        return guess, token, copied

    def _periodic(self, path: Sequence[int]) -> "Follower":
        """What was copied from the end of the source continues with the draft itself."""
        position = self.position + 1
        copied = Matched(self.automaton, self.state, self.run + 1, self.source, position)
        guess = guess_counted(self.source, self.run, 1, 1, self.weight)
        return guess, path[position - len(self.automaton.token_ids)], copied


@dataclass(slots=True)
class Resumed:
    """A source past a token that was substituted after `run` copied ones."""

    automaton: SuffixAutomaton
    position: int  # of the last copied or substituted token among the automaton's
    run: int
    probability: float  # that the source's next token follows
    later_probability: float  # that the one after it does

    def followers(self, path: Sequence[int]) -> "Iterator[Follower]":
        position, token_ids = self.position + 1, self.automaton.token_ids
        if position < len(token_ids):
            probability = self.later_probability
            later = min(_MOST_LIKELY, probability + _MORE_LIKELY)
            after = Resumed(self.automaton, position, self.run + 1, probability, later)
            yield guess_resumed(self.run, self.probability), token_ids[position], after


Copied = Matched | Resumed
"""A place that a draft has reached; `followers` gives what may follow there, likeliest first,
where `path` are the draft's tokens up to here. A negative token is the end of an answer."""

Follower = tuple[Guess, int, Copied]  # a guess, its token, and the place after it


@dataclass(slots=True)
class Node:
    """A draft token, and the probability that it is reached and accepted."""

    token_id: int
    parent: int  # its index; -1 for none
    copied: Copied  # the place that it leads to
    guess: Guess  # that it follows its parent
    probability: float


def chain(root: Copied, limits: Limits) -> list[Node]:
    """The most frequent continuation of `root`, as far as it is worth its time."""
    nodes: list[Node] = []
    path: list[int] = []
    place, probability = root, 1.0
    for _ in range(limits.longest):
        if (follower := next(place.followers(path), None)) is None:
            break
        guess, token, copied = follower
        probability, value = limits.score(probability, guess)
        if token < 0 or value < limits.threshold:
            break
        nodes.append(Node(token, len(nodes) - 1, copied, guess, probability))
        path.append(token)
        place = copied
    # All are copied from where they last occurred together.
    for distance, node in enumerate(reversed(nodes)):
        node.copied.position = place.position - distance
    return nodes


def grow(roots: Iterable[Copied], limits: Limits) -> list[Node]:
    """The tree of the likeliest tokens that are worth their time.

    The token with the highest probability of being reached and accepted is taken next; a parent
    comes before its children. Where two places propose the same token, one node stands for both.
    """
    nodes: list[Node] = []
    # The tokens of the branch up to each node; -1 has none.
    paths: dict[int, tuple[int, ...]] = {-1: ()}
    taken: dict[tuple[int, int], int] = {}
    # The number breaks ties by age, and keeps the heap from comparing places.
    heap: list[tuple[float, int, int, int, Guess, Copied]] = []
    numbers = itertools.count()

    def offer(reached: float, parent: int, place: Copied) -> None:
        """Offer what follows at a place as children of a node."""
        for guess, token, after in place.followers(paths[parent]):
            if token < 0:
                continue
            probability, value = limits.score(reached, guess)
            if value < limits.threshold:
                break
            heapq.heappush(heap, (-probability, next(numbers), parent, token, guess, after))

    for place in roots:
        offer(1.0, -1, place)
    while heap and len(nodes) < limits.longest:
        negative, _, parent, token, guess, copied = heapq.heappop(heap)
        if (node := taken.get((parent, token))) is None:
            node = taken[parent, token] = len(nodes)
            nodes.append(Node(token, parent, copied, guess, -negative))
            paths[node] = (*paths[parent], token)
        offer(-negative, node, copied)
    return nodes
