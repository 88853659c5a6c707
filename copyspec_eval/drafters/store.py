"""Answers to earlier requests of the run, as a second source to copy from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from copyspec_eval.drafters.automaton import SuffixAutomaton

_MOST_TOKENS = 200_000
"""About 100 MB in Python objects."""


class AnswerStore:
    """The latest answers of a run, bounded in memory.

    They are kept in the order in which they were added, each followed by a negative token that
    occurs once, so that nothing is ever copied across the end of an answer. When they come to more
    than `most_tokens`, the older half is dropped.

    Attributes:
        automaton: of the answers; another object once some were dropped.

    >>> store = AnswerStore()
    >>> store.add([5, 6, 7])
    >>> match = StoreMatch(store.automaton, [9, 5, 6])
    >>> match.length, store.automaton.best[match.state]
    (2, 7)
    """

    def __init__(self, most_tokens: int = _MOST_TOKENS) -> None:
        self.automaton = SuffixAutomaton()
        self._most_tokens = most_tokens
        self._answers: deque[tuple[int, ...]] = deque()
        self._num_tokens = 0
        self._num_added = 0

    def add(self, token_ids: Sequence[int]) -> None:
        """Keep an answer."""
        self._num_added += 1
        answer = (*token_ids, -self._num_added)
        self._answers.append(answer)
        self._num_tokens += len(answer)
        if self._num_tokens <= self._most_tokens:
            self._index([answer])
            return
        while self._num_tokens > self._most_tokens // 2:
            self._num_tokens -= len(self._answers.popleft())
        self.automaton = SuffixAutomaton()
        self._index(self._answers)

    def _index(self, answers: Iterable[tuple[int, ...]]) -> None:
        for answer in answers:
            for token in answer:
                self.automaton.append(token)


class StoreMatch:
    """The longest suffix of a growing context that occurs among an automaton's tokens.

    The automaton may grow meanwhile.

    Attributes:
        automaton: see above.
        length: of the match, in tokens.
    """

    def __init__(self, automaton: SuffixAutomaton, token_ids: Iterable[int] = ()) -> None:
        self.automaton = automaton
        self.length = 0
        self._state = 0
        for token in token_ids:
            self.advance(token)

    @property
    def state(self) -> int:
        """The state of the match; what was one state may have been split since."""
        length, link = self.automaton.length, self.automaton.link
        while self._state and self.length <= length[link[self._state]]:
            self._state = link[self._state]
        return self._state

    def advance(self, token: int) -> None:
        """Extend the context by a token."""
        automaton, state = self.automaton, self.state
        while state and token not in automaton.next[state]:
            state = automaton.link[state]
            self.length = automaton.length[state]
        after = automaton.next[state].get(token)
        self._state, self.length = (0, 0) if after is None else (after, self.length + 1)
