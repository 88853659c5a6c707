"""Several continuations at once: the likeliest tokens first, whichever branch they are on."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from copyspec_eval.drafters.automaton import SuffixAutomaton

KEPT_MORE, KEPT_MOST = 0.02, 0.97
"""By how much the chance that a resumed copy goes on grows with every token, and up to where."""


class Continuation(Protocol):
    """A place in a text that a draft has come to.

    Attributes:
        text: the text.
        position: index there of the token that led here.
        run: how many tokens up to here are those of the text.
    """

    @property
    def text(self) -> Sequence[int]: ...
    @property
    def position(self) -> int: ...
    @property
    def run(self) -> int: ...

    def followers(self, path: Sequence[int]) -> Iterator[tuple[float, int, Continuation]]:
        """What may follow, given the draft's tokens up to here: chance, token, and the place then.

        Chances do not rise.
        """


@dataclass(slots=True)
class Node:
    """A draft token, the index of the one before it (-1 for none), and its place in a text."""

    token_id: int
    parent: int
    place: Continuation


def grow(roots: Iterable[tuple[float, Continuation]], prices: Sequence[float]) -> list[Node]:
    """The tree of the likeliest tokens that are worth their prices.

    The token with the highest chance of being reached and accepted is taken next, until the next
    one is under its price. Where two places go on with the same token, one node stands for both.

    Args:
        roots: places from which the draft may go on, each with the chance that it does.
        prices: as for `Drafter.propose`, rising.

    Returns:
        nodes in the order in which they were taken; a parent stands before its children.
    """
    nodes: list[Node] = []
    paths: list[tuple[int, ...]] = []
    taken: dict[tuple[int, int], int] = {}
    # The count breaks ties by age, and keeps the heap from comparing places.
    heap: list[tuple[float, int, int, int, Continuation]] = []
    num_pushed = 0

    def push(chance: float, parent: int, place: Continuation) -> None:
        nonlocal num_pushed
        least = prices[len(nodes)] if len(nodes) < len(prices) else 1.0
        for share, token, after in place.followers(paths[parent] if parent >= 0 else ()):
            if chance * share < least:
                break
            num_pushed += 1
            heapq.heappush(heap, (-chance * share, num_pushed, parent, token, after))

    for chance, place in roots:
        push(chance, -1, place)
    while heap and len(nodes) < len(prices):
        negative, _, parent, token, place = heapq.heappop(heap)
        if -negative < prices[len(nodes)]:
            break
        node = taken.get((parent, token))
        if node is None:
            node = taken[parent, token] = len(nodes)
            nodes.append(Node(token, parent, place))
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        push(-negative, node, place)
    return nodes


@dataclass(slots=True)
class Matched:
    """The state of an automaton that the last `length` tokens match."""

    seen: SuffixAutomaton
    state: int
    length: int
    doubt: float
    position: int = -1

    @property
    def text(self) -> Sequence[int]:
        """The automaton's."""
        return self.seen.text

    @property
    def run(self) -> int:
        """The length of the match."""
        return self.length

    def followers(self, path: Sequence[int]) -> Iterator[tuple[float, int, Continuation]]:
        """What followed the state's substrings, the most frequent first, of equals the latest."""
        seen, state, doubt = self.seen, self.state, self.doubt
        count, end, text_length = seen.count, seen.end, len(seen.text)
        known = count[state] - (end[state] == text_length)
        if known <= 0:
            # The end of the text: what was copied from there goes on into the draft itself.
            behind = self.position + 1
            place = Matched(seen, state, self.length + 1, doubt, behind)
            yield self.length / (self.length + doubt), path[behind - text_length], place
            return
        total = known + doubt / self.length
        ranked = sorted(
            ((count[after], end[after], token, after) for token, after in seen.next[state].items()),
            reverse=True,
        )
        for times, last, token, after in ranked:
            if token >= 0:
                place = Matched(seen, after, self.length + 1, doubt, last - 1)
                yield times / total, token, place


@dataclass(slots=True)
class Resumed:
    """A text behind a token that was substituted.

    Attributes:
        text, position: see `Continuation`.
        run: how many tokens up to here are those of the text, but for the substituted one.
        share: chance that the text's next token follows.
        kept: the same of the one after; it grows from there.
    """

    text: Sequence[int]
    position: int
    run: int
    share: float
    kept: float

    def followers(self, path: Sequence[int]) -> Iterator[tuple[float, int, Continuation]]:
        """The text's next token."""
        behind = self.position + 1
        if behind < len(self.text) and self.text[behind] >= 0:
            later = min(KEPT_MOST, self.kept + KEPT_MORE)
            place = Resumed(self.text, behind, self.run + 1, self.kept, later)
            yield self.share, self.text[behind], place
