"""The longest repetition decides what to copy, and how sure it is how much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from copyspec_eval.drafters.automaton import SuffixAutomaton
from copyspec_eval.drafters.store import AnswerStore, StoreMatch
from copyspec_eval.drafters.tree import (
    KEPT_MORE,
    KEPT_MOST,
    Continuation,
    Matched,
    Node,
    Resumed,
    grow,
)
from copyspec_eval.types import Draft, Verdict

_DOUBT, _DOUBT_STORE = 2.5, 8.0
"""Occurrences, over the match's length, that are imagined to have gone on in another way: in the
request's own text, and in earlier answers."""

_RESUMED, _KEPT = 0.2, 0.84
"""Chance that a copy goes on after a substitution, and that it then goes on from token to token."""

_SHORTER = 0.5
"""Chance that a tree gives to what followed the next shorter match."""


@dataclass(slots=True)
class _Candidate:
    """Tokens that may be drafted.

    Attributes:
        token_ids: see above.
        text, position: where they stand.
        run: how many tokens before them are copied from there, too.
        expected: how many of them are expected to be accepted.
        resumed: whether a token was substituted just before them.
    """

    token_ids: Sequence[int]
    text: Sequence[int]
    position: int
    run: int
    expected: float
    resumed: bool = False


class SuffixDrafter:
    """Copies what most often followed the longest suffix that occurred before, while it is sure.

    A suffix automaton of prompt and output finds, for every length m of the match so far, how often
    its occurrences went on with which token. The most frequent is drafted, the chance q that the
    draft holds until there falling by `count / (all + 2.5 / m)` per token, until q is under the
    token's price; at the end of the text the draft goes on periodically. Where a copy has just been
    rejected after a long run, going on in the source behind the substituted token is a second
    candidate, and what follows the longest match in a store of earlier answers, if there is one, a
    third; the one with the most expected tokens is drafted.

    With `tree`, the likeliest tokens of all candidates and of the next shorter match are drafted
    together as a tree.

    Args:
        store: earlier answers; this request's own is added when it is done.
        tree: see above.

    >>> drafter = SuffixDrafter()
    >>> drafter.start([5, 6, 7, 5, 6, 9, 5, 6, 9, 1, 5, 6])  # 5 6 went on with 7, 9 and 9
    >>> draft = drafter.propose(max_tokens=100, prices=[0.1] * 100)
    >>> draft.token_ids, draft.position
    ((9, 1, 5), 8)
    """

    def __init__(self, store: AnswerStore | None = None, tree: bool = False) -> None:
        self._store = store
        self._tree = tree
        self._nodes: list[Node] = []
        self._stored = StoreMatch(store.automaton) if store else None
        self._seen = SuffixAutomaton()
        self._num_prompt_tokens = 0
        self._chosen: _Candidate | None = None
        self._broken: _Candidate | None = None

    def start(self, prompt_ids: Sequence[int]) -> None:
        """Index the prompt."""
        self._num_prompt_tokens = len(prompt_ids)
        self._append(prompt_ids)

    def propose(self, max_tokens: int, prices: Sequence[float]) -> Draft:
        """The candidate from which the most tokens are expected to be accepted."""
        if self._tree:
            return self._propose_tree(prices[:max_tokens])
        best = max(self._candidates(prices[:max_tokens]), key=lambda found: found.expected)
        self._chosen = best if best.token_ids else None
        if self._chosen is None:
            return Draft()
        token_ids, match_length = tuple(best.token_ids), 0 if best.resumed else best.run
        if best.text is self._seen.text:
            return Draft(token_ids, best.position, match_length)
        return Draft(token_ids, match_length=match_length, source="store")

    def observe(self, token_ids: Sequence[int], verdict: Verdict) -> None:
        """Index what was generated, and note where the draft was rejected after how long a run."""
        chosen, accepted = self._chosen, verdict.num_accepted
        self._broken = None
        if verdict.path is not None:
            self._broken = self._broken_branch(verdict.path)
        elif chosen and accepted < len(chosen.token_ids) and (accepted or not chosen.resumed):
            behind = chosen.position + accepted + 1
            run = chosen.run + accepted
            self._broken = _Candidate((), chosen.text, behind, run, 0.0, chosen.resumed)
        self._append(token_ids)

    def finish(self) -> None:
        """Keep the answer for later requests."""
        if self._store is not None:
            self._store.add(self._seen.text[self._num_prompt_tokens :])

    def _append(self, token_ids: Sequence[int]) -> None:
        for token in token_ids:
            self._seen.append(token)
        if self._stored is not None:
            for token in token_ids:
                self._stored.advance(token)

    def _propose_tree(self, prices: Sequence[float]) -> Draft:
        self._nodes = nodes = grow(self._roots(), prices)
        if not nodes:
            return Draft()
        own = self._seen.text
        positions = tuple(node.place.position if node.place.text is own else -1 for node in nodes)
        return Draft(
            tuple(node.token_id for node in nodes),
            positions[0],
            nodes[0].place.run - 1,
            "store" if positions[0] < 0 else "context",
            tuple(node.parent for node in nodes),
            positions,
        )

    def _roots(self) -> Iterator[tuple[float, Continuation]]:
        """Where a tree may begin."""
        seen, stored, broken = self._seen, self._stored, self._broken
        match = seen.link[seen.whole]
        length = seen.length[match] if match > 0 else 0
        if length:
            yield 1.0, Matched(seen, match, length, _DOUBT)
            shorter = seen.link[match]
            if shorter > 0:
                yield _SHORTER, Matched(seen, shorter, seen.length[shorter], _DOUBT)
        if stored is not None and stored.length:
            yield 1.0, Matched(stored.automaton, stored.state, stored.length, _DOUBT_STORE)
            length = max(length, stored.length)
        if broken and _may_resume(broken.run, length):
            kept = _KEPT * broken.run / (broken.run + 1)
            yield _RESUMED, Resumed(broken.text, broken.position - 1, broken.run, 1.0, kept)

    def _broken_branch(self, path: Sequence[int]) -> _Candidate | None:
        """The text behind the likeliest token that was drafted where the model said another."""
        last = path[-1] if path else -1
        rejected = next((node for node in self._nodes if node.parent == last), None)
        if rejected is None:
            return None
        place = rejected.place
        resumed = isinstance(place, Resumed)
        if resumed and not path:
            return None
        return _Candidate((), place.text, place.position + 1, place.run - 1, 0.0, resumed)

    def _candidates(self, prices: Sequence[float]) -> Iterator[_Candidate]:
        """What may be drafted now; the first is preferred to its equals."""
        seen, stored = self._seen, self._stored
        match = seen.link[seen.whole]
        length = seen.length[match] if match > 0 else 0
        yield _follow(seen, match, length, _DOUBT, prices)
        if stored is not None:
            yield _follow(stored.automaton, stored.state, stored.length, _DOUBT_STORE, prices)
            length = max(length, stored.length)
        if self._broken and _may_resume(self._broken.run, length):
            yield _resume(self._broken, prices)


def _may_resume(run: int, match_length: int) -> bool:
    """Whether a run of copied tokens that was just broken outweighs the match that there is now."""
    return run >= 1 if match_length == 0 else match_length <= 6 and run >= 8


def _resume(broken: _Candidate, prices: Sequence[float]) -> _Candidate:
    """The text behind a substituted token."""
    token_ids: list[int] = []
    chance, expected = _RESUMED, 0.0
    kept = _KEPT * broken.run / (broken.run + 1)
    behind = broken.text[broken.position : broken.position + len(prices)]
    for price, token in zip(prices, behind, strict=False):
        if chance < price or token < 0:
            break
        token_ids.append(token)
        expected += chance
        chance *= kept
        kept = min(KEPT_MOST, kept + KEPT_MORE)
    return _Candidate(token_ids, broken.text, broken.position, broken.run, expected, True)


def _follow(
    seen: SuffixAutomaton, state: int, length: int, doubt: float, prices: Sequence[float]
) -> _Candidate:
    """The most frequent continuation of `state`, matched by the last `length` tokens."""
    token_ids: list[int] = []
    run = length
    if not length:
        return _Candidate(token_ids, seen.text, -1, run, 0.0)
    count, following, best, end = seen.count, seen.next, seen.best, seen.end
    text_length = len(seen.text)
    chance, expected, period = 1.0, 0.0, 0
    for price in prices:
        # The occurrence at the end of the text has not gone on in any way yet.
        known = count[state] - (end[state] == text_length)
        if known > 0:
            token = best[state]
            after = following[state][token]
            chance *= count[after] / (known + doubt / length)
        else:
            period = period or len(token_ids)
            token, after = token_ids[-period], state
            chance *= length / (length + doubt)
        if chance < price or token < 0:
            break
        token_ids.append(token)
        expected += chance
        length += 1
        state = after
    position = end[state] - (period or len(token_ids))
    return _Candidate(token_ids, seen.text, position, run, expected)
