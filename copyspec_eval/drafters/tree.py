"""Several continuations at once: the likeliest tokens first, whichever branch they are on."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from copyspec_eval.drafters.automaton import SuffixAutomaton
from copyspec_eval.drafters.outcomes import Guess, Limits, guess_counted, guess_resumed

KEPT_MORE, KEPT_MOST = 0.02, 0.97
"""By how much the probability that a resumed copy continues grows with every token, and its cap."""


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


def grow(roots: Iterable[Continuation], limits: Limits) -> list[Node]:
    """The tree of the likeliest tokens that are worth their time.

    The token with the highest probability of being reached and accepted is taken next, unless it is
    out of limits. Where two continuations propose the same token, one node stands for both.

    Args:
        roots: where the draft may continue from.
        limits: the thresholds rise; they count in the order in which nodes are taken.

    Returns:
        nodes in the order in which they were taken; a parent comes before its children.
    """
    nodes: list[Node] = []
    paths: list[tuple[int, ...]] = []
    taken: dict[tuple[int, int], int] = {}
    thresholds = limits.thresholds
    # The count breaks ties by age, and keeps the heap from comparing continuations.
    heap: list[tuple[float, int, float, int, int, Guess, Continuation]] = []
    num_pushed = 0

    def push(reached: float, parent: int, continuation: Continuation) -> None:
        nonlocal num_pushed
        threshold = thresholds[len(nodes)] if len(nodes) < len(thresholds) else 1.0
        path = paths[parent] if parent >= 0 else ()
        for guess, token, after in continuation.followers(path):
            probability, value = limits.weigh(reached, guess)
            if value < threshold:
                break
            num_pushed += 1
            heapq.heappush(heap, (-probability, num_pushed, value, parent, token, guess, after))

    for root in roots:
        push(1.0, -1, root)
    while heap and len(nodes) < len(thresholds):
        negative, _, value, parent, token, guess, copied = heapq.heappop(heap)
        if value < thresholds[len(nodes)]:
            continue
        node = taken.get((parent, token))
        if node is None:
            node = taken[parent, token] = len(nodes)
            nodes.append(Node(token, parent, copied, guess, -negative))
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        push(-negative, node, copied)
    return nodes


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
