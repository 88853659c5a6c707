"""Every substring of a growing token sequence in linear space, with what followed it."""

from __future__ import annotations

_WALK = 16
"""How many suffixes are counted per token: bounds the time where one token repeats."""


class SuffixAutomaton:
    """The suffix automaton of a growing token sequence (Blumer et al. 1985), with counts.

    A state stands for the substrings that end at the same positions; `next` leads to the state of a
    substring and one more token, `link` to that of its longest suffix that also ends elsewhere.
    State 0 is the empty substring. Appending takes amortised constant time and at most two states.

    Attributes:
        token_ids: the tokens so far.
        num_earlier: how many of the first ones are of answers of earlier runs.
        length: of each state, the length of its longest substring.
        link: of each state, the state that it links to; -1 for state 0.
        next: of each state, the state by following token.
        count: of each state, how often its substrings occurred.
        end: of each state, the number of tokens when its substrings last occurred.
        best: of each state, the token that followed most often, of equals the latest; -1 if none.
        last: the state of all tokens so far.

    >>> automaton = SuffixAutomaton()
    >>> for token in [5, 6, 7, 5, 6, 8, 5, 6]:
    ...     automaton.append(token)
    >>> match = automaton.link[automaton.last]  # the longest suffix that occurred before: 5 6
    >>> automaton.length[match], automaton.count[match], automaton.best[match]
    (2, 3, 8)
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.num_earlier = 0
        self.length = [0]
        self.link = [-1]
        self.next: list[dict[int, int]] = [{}]
        self.count = [0]
        self.end = [0]
        self.best = [-1]
        self.last = 0

    def append(self, token: int) -> None:
        """Add a token at the end."""
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
            favourite = best[state]
            if favourite != token and (
                favourite == -1 or count[after] >= count[following[state][favourite]]
            ):
                best[state] = token
            state = link[state]
            if state == -1:
                break
