"""Answers to other requests, of the run and of earlier ones, as a second source to copy from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from copyspec_eval.drafters.automaton import SuffixAutomaton

_MOST_TOKENS = 200_000
"""About 100 MB in Python objects."""


class AnswerStore:
    """The latest answers of a run and, before its own, of earlier runs, bounded in memory.

    Each is followed by a negative token that occurs once, so that nothing is ever copied across the
    end of an answer. Two halves have `most_tokens`, each with an automaton, the newer one last:
    when that is full, the older is dropped as a whole, so that nothing is indexed again. Of the
    answers of `earlier` runs, the last ones stay.

    >>> store = AnswerStore()
    >>> store.add([5, 6, 7])
    >>> match = StoreMatch(store.automata[-1], [9, 5, 6])
    >>> match.length, match.automaton.best[match.state]
    (2, 7)
    """

    def __init__(
        self, most_tokens: int = _MOST_TOKENS, earlier: Iterable[Sequence[int]] = ()
    ) -> None:
        self.automata = [SuffixAutomaton()]
        self._most_tokens = most_tokens
        self._num_added = 0
        for answer in earlier:
            self.add(answer)
        for automaton in self.automata:
            automaton.num_earlier = len(automaton.token_ids)

    def add(self, token_ids: Sequence[int]) -> None:
        """Keep an answer."""
        self._num_added += 1
        newer = self.automata[-1]
        num_tokens = len(newer.token_ids)
        if num_tokens and num_tokens + len(token_ids) >= self._most_tokens // 2:
            self.automata = [newer, SuffixAutomaton()]
            newer = self.automata[-1]
        for token in (*token_ids, -self._num_added):
            newer.append(token)


class StoreMatch:
    """The longest suffix of a growing context that occurs among an automaton's tokens.

    The automaton may grow meanwhile. `length` is that of the match, in tokens.
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
