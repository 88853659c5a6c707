"""The longest repetition decides what to copy, and how sure it is how much."""

from __future__ import annotations

from collections.abc import Sequence

from copyspec_eval.drafters.automaton import SuffixAutomaton
from copyspec_eval.types import Draft, Verdict

_DOUBT = 2.5
"""Occurrences, over the match's length, that are imagined to have gone on in another way."""

_RESUMED, _KEPT, _KEPT_MORE, _KEPT_MOST = 0.2, 0.84, 0.02, 0.97
"""Chance that a copy goes on after a substitution; per token from there, growing, at most."""


class SuffixDrafter:
    """Copies what most often followed the longest suffix that occurred before, while it is sure.

    A suffix automaton of prompt and output finds, for every length m of the match so far, how often
    its occurrences went on with which token. The most frequent is drafted, the chance q that the
    draft holds until there falling by `count / (all + 2.5 / m)` per token, until q is under the
    token's price; at the end of the text the draft goes on periodically. Where a copy has just been
    rejected after a long run, going on in the source behind the substituted token is a second
    candidate; the one with more expected tokens is drafted.

    >>> drafter = SuffixDrafter()
    >>> drafter.start([5, 6, 7, 5, 6, 9, 5, 6, 9, 1, 5, 6])  # 5 6 went on with 7, 9 and 9
    >>> drafter.propose(max_tokens=100, prices=[0.1] * 100)
    Draft(token_ids=(9, 1, 5), position=8, match_length=2, source='context')
    """

    def __init__(self) -> None:
        self._seen = SuffixAutomaton()
        self._draft = Draft()
        self._resumed = False
        self._rejected = -1
        self._run = 0

    def start(self, prompt_ids: Sequence[int]) -> None:
        """Index the prompt."""
        for token in prompt_ids:
            self._seen.append(token)

    def propose(self, max_tokens: int, prices: Sequence[float]) -> Draft:
        """The better of copying after the longest match and of resuming a rejected copy."""
        prices = prices[:max_tokens]
        draft, expected = self._copied(prices)
        self._resumed = False
        if self._may_resume(draft.match_length):
            resumed, expected_resumed = self._resume(prices)
            if expected_resumed > expected:
                draft, self._resumed = resumed, True
        self._draft = draft if draft.token_ids else Draft()
        return self._draft

    def observe(self, token_ids: Sequence[int], verdict: Verdict) -> None:
        """Index what was generated, and note where the draft was rejected after how long a run."""
        draft, accepted = self._draft, verdict.num_accepted
        self._run = accepted + (self._run if self._resumed else draft.match_length)
        stuck = self._resumed and not accepted
        rejected = accepted < len(draft.token_ids) and not stuck
        self._rejected = draft.position + accepted if rejected else -1
        for token in token_ids:
            self._seen.append(token)

    def _copied(self, prices: Sequence[float]) -> tuple[Draft, float]:
        """What follows the longest match, and its expected number of accepted tokens."""
        seen = self._seen
        count, following, best, end = seen.count, seen.next, seen.best, seen.end
        state, text_length = seen.link[seen.whole], len(seen.text)
        match_length = length = seen.length[state] if state > 0 else 0
        if not length:
            return Draft(), 0.0
        token_ids: list[int] = []
        chance, expected, period = 1.0, 0.0, 0
        for price in prices:
            # The occurrence at the end of the text has not gone on in any way yet.
            known = count[state] - (end[state] == text_length)
            if known > 0:
                token = best[state]
                after = following[state][token]
                chance *= count[after] / (known + _DOUBT / length)
            else:
                period = period or len(token_ids)
                token, after = token_ids[-period], state
                chance *= length / (length + _DOUBT)
            if chance < price:
                break
            token_ids.append(token)
            expected += chance
            length += 1
            state = after
        position = end[state] - (period or len(token_ids))
        return Draft(tuple(token_ids), position, match_length), expected

    def _may_resume(self, match_length: int) -> bool:
        """Whether a copy was just rejected after a run that a short match does not outweigh."""
        if self._rejected < 0:
            return False
        return self._run >= 1 if match_length == 0 else match_length <= 6 and self._run >= 8

    def _resume(self, prices: Sequence[float]) -> tuple[Draft, float]:
        """The text behind the substituted token, and its expected number of accepted tokens."""
        start = self._rejected + 1
        chance, expected, num_tokens = _RESUMED, 0.0, 0
        kept = _KEPT * self._run / (self._run + 1)
        for price in prices[: len(self._seen.text) - start]:
            if chance < price:
                break
            expected += chance
            num_tokens += 1
            chance *= kept
            kept = min(_KEPT_MOST, kept + _KEPT_MORE)
        return Draft(tuple(self._seen.text[start : start + num_tokens]), start), expected
