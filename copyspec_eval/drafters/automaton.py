"""Every substring of a growing token sequence in linear space, with what followed it.

And a store of such sequences: answers to other requests, as a second source to copy from.
"""

from collections.abc import Iterable, Sequence

_WALK = 16  # how many suffixes are counted per token: bounds the time where one token repeats
_CAPACITY = 200_000  # of a store, in tokens: about 100 MB in Python objects


class SuffixAutomaton:
    """The suffix automaton of a growing token sequence (Blumer et al. 1985), with counts.

    A state stands for the substrings that end at the same positions; `next` leads to the state of a
    substring and one more token, `link` to that of its longest suffix that also ends elsewhere.
    State 0 is the empty substring. Appending takes amortised constant time and at most two states.

    >>> automaton = SuffixAutomaton()
    >>> for token in [5, 6, 7, 5, 6, 8, 5, 6]:
    ...     automaton.append(token)
    >>> match = automaton.link[automaton.last]  # the longest suffix that occurred before: 5 6
    >>> automaton.length[match], automaton.count[match], automaton.best[match]
    (2, 3, 8)
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.num_earlier = 0  # how many of the first tokens are of answers of earlier runs
        self._num_answers = 0
        # Of each state:
        self.length = [0]  # that of its longest substring
        self.link = [-1]
        self.next: list[dict[int, int]] = [{}]  # states by following token
        self.count = [0]  # how often its substrings occurred
        self.end = [0]  # the number of tokens when they last did
        self.best = [-1]  # the token that followed most often, of equals the latest; -1 if none
        self.last = 0  # the state of all tokens so far

    def append_answer(self, token_ids: Iterable[int]) -> None:
        """Append them, and a negative token that occurs once: nothing is copied across an end."""
        self._num_answers += 1
        for token in (*token_ids, -self._num_answers):
            self.append(token)

    def append(self, token: int) -> None:
        link, following = self.link, self.next
        state = before = self.last
        self.last = last = self._add_state(self.length[before] + 1, {}, 0, 0, -1)
        self.token_ids.append(token)
        while state != -1 and token not in following[state]:
            following[state][token] = last
            state = link[state]
        if state != -1:
            link[last] = self._suffix_state(state, token)
        self._count(before, token)

    def _suffix_state(self, state: int, token: int) -> int:
        """The state of exactly the longest substring of `state` and `token`; made if there is none.

        It is split off the state of the longer ones, which so far ended at the same positions.
        """
        length, link, following = self.length, self.link, self.next
        longer = following[state][token]
        if length[longer] == length[state] + 1:
            return longer
        count, end, best = self.count[longer], self.end[longer], self.best[longer]
        split = self._add_state(length[state] + 1, following[longer].copy(), count, end, best)
        link[split], link[longer] = link[longer], split
        while state != -1 and following[state].get(token) == longer:
            following[state][token] = split
            state = link[state]
        return split

    def _add_state(
        self, length: int, following: dict[int, int], count: int, end: int, best: int
    ) -> int:
        self.length.append(length)
        self.link.append(0)
        self.next.append(following)
        self.count.append(count)
        self.end.append(end)
        self.best.append(best)
        return len(self.link) - 1

    def _count(self, state: int, token: int) -> None:
        """Count for the suffixes before `token`, longest first, that it followed them."""
        link, following, count, end, best = self.link, self.next, self.count, self.end, self.best
        length = len(self.token_ids)
        counted = 0
        for _ in range(_WALK):
            after = following[state][token]
            if after != counted:
                counted = after
                count[after] += 1
                end[after] = length
            usual = best[state]
            if usual != token and (usual == -1 or count[after] >= count[following[state][usual]]):
                best[state] = token
            if (state := link[state]) == -1:
                break


class AnswerStore:
    """The latest answers of a run and, before its own, of earlier runs, bounded in memory.

    Two halves share the `capacity`, each with an automaton, the newer one last: when that is full,
    the older is dropped as a whole, so that nothing is indexed again. Of the answers of `earlier`
    runs, the last ones stay.

    >>> store = AnswerStore()
    >>> store.add([5, 6, 7])
    >>> match = StoreMatch(store.automata[-1], [9, 5, 6])
    >>> match.length, match.automaton.best[match.state]
    (2, 7)
    """

    def __init__(self, capacity: int = _CAPACITY, earlier: Iterable[Sequence[int]] = ()) -> None:
        self.automata = [SuffixAutomaton()]
        self._capacity = capacity
        for answer in earlier:
            self.add(answer)
        for automaton in self.automata:
            automaton.num_earlier = len(automaton.token_ids)

    def add(self, token_ids: Sequence[int]) -> None:
        newer = self.automata[-1]
        num_tokens = len(newer.token_ids)
        if num_tokens and num_tokens + len(token_ids) >= self._capacity // 2:
            self.automata = [newer, SuffixAutomaton()]
        self.automata[-1].append_answer(token_ids)


class StoreMatch:
    """The longest suffix of a growing context that occurs among an automaton's tokens.

    The automaton may grow meanwhile. `length` is that of the match, in tokens.
    """

    def __init__(self, automaton: SuffixAutomaton, token_ids: Iterable[int] = ()) -> None:
        self.automaton, self.length, self._state = automaton, 0, 0
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
        automaton, state = self.automaton, self.state
        while state and token not in automaton.next[state]:
            state = automaton.link[state]
            self.length = automaton.length[state]
        after = automaton.next[state].get(token)
        self._state, self.length = (0, 0) if after is None else (after, self.length + 1)
