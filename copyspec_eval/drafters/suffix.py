"""The longest repetition decides what to copy, and its counts decide how much."""

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

_PRIOR, _PRIOR_STORE = 2.5, 8.0
"""Over the match's length, how many more occurrences with another continuation are imagined: in
the context, and in earlier answers."""

_RESUMED, _KEPT = 0.2, 0.84
"""Probability that a copy resumes after a substitution, and that it continues by a token then."""

_SHORTER = 0.5
"""Probability that a tree gives to what followed the next shorter match."""


@dataclass(slots=True)
class _Candidate:
    """Tokens that may be drafted.

    Attributes:
        token_ids: see above.
        source_ids, position: the tokens that they are copied from, and the index there.
        run: how many tokens before them are copied from there, too.
        expected: how many of them are expected to be accepted.
        resumed: whether a token was substituted just before them.
    """

    token_ids: Sequence[int]
    source_ids: Sequence[int]
    position: int
    run: int
    expected: float
    resumed: bool = False


class SuffixDrafter:
    """Copies what most often followed the longest suffix that occurred before, while it is likely.

    A suffix automaton of prompt and output counts, for every length m of the match so far, how
    often which token followed its occurrences. The most frequent is drafted; the probability q that
    the draft is right so far falls by `count / (all + 2.5 / m)` per token, until q is under the
    token's acceptance threshold. At the end of the context the draft continues periodically. Where
    a copy has just been rejected after a long run, its source behind the substituted token is a
    second candidate, and what follows the longest match in a store of earlier answers, if there is
    one, a third; the one with the most expected tokens is drafted.

    With `tree`, the likeliest tokens of all candidates and of the next shorter match are drafted
    together as a tree.

    Args:
        store: earlier answers; this request's is added when it is done.
        tree: see above.

    >>> drafter = SuffixDrafter()
    >>> drafter.start([5, 6, 7, 5, 6, 9, 5, 6, 9, 1, 5, 6])  # 5 6 was followed by 7, 9 and 9
    >>> draft = drafter.propose(max_tokens=100, thresholds=[0.1] * 100)
    >>> draft.token_ids, draft.position
    ((9, 1, 5), 8)
    """

    def __init__(self, store: AnswerStore | None = None, tree: bool = False) -> None:
        self._store = store
        self._tree = tree
        self._nodes: list[Node] = []
        self._stored = StoreMatch(store.automaton) if store else None
        self._context = SuffixAutomaton()
        self._num_prompt_tokens = 0
        self._drafted: _Candidate | None = None
        self._rejected: _Candidate | None = None

    def start(self, prompt_ids: Sequence[int]) -> None:
        """Index the prompt."""
        self._num_prompt_tokens = len(prompt_ids)
        self._append(prompt_ids)

    def propose(self, max_tokens: int, thresholds: Sequence[float]) -> Draft:
        """The candidate from which the most tokens are expected to be accepted."""
        if self._tree:
            return self._propose_tree(thresholds[:max_tokens])
        candidates = self._candidates(thresholds[:max_tokens])
        best = max(candidates, key=lambda candidate: candidate.expected)
        self._drafted = best if best.token_ids else None
        if self._drafted is None:
            return Draft()
        token_ids, match_length = tuple(best.token_ids), 0 if best.resumed else best.run
        if best.source_ids is self._context.token_ids:
            return Draft(token_ids, best.position, match_length)
        return Draft(token_ids, match_length=match_length, source="store")

    def observe(self, token_ids: Sequence[int], verdict: Verdict) -> None:
        """Index what was committed, and note where the draft was rejected after how long a run."""
        drafted, accepted = self._drafted, verdict.num_accepted
        self._rejected = None
        if verdict.path is not None:
            self._rejected = self._rejected_branch(verdict.path)
        elif drafted and accepted < len(drafted.token_ids) and (accepted or not drafted.resumed):
            position, run = drafted.position + accepted + 1, drafted.run + accepted
            self._rejected = _Candidate((), drafted.source_ids, position, run, 0.0, drafted.resumed)
        self._append(token_ids)

    def finish(self) -> None:
        """Keep the answer for later requests."""
        if self._store is not None:
            self._store.add(self._context.token_ids[self._num_prompt_tokens :])

    def _append(self, token_ids: Sequence[int]) -> None:
        for token in token_ids:
            self._context.append(token)
        if self._stored is not None:
            for token in token_ids:
                self._stored.advance(token)

    def _propose_tree(self, thresholds: Sequence[float]) -> Draft:
        self._nodes = nodes = grow(self._roots(), thresholds)
        if not nodes:
            return Draft()
        context_ids = self._context.token_ids
        positions = tuple(
            node.copied.position if node.copied.source_ids is context_ids else -1 for node in nodes
        )
        return Draft(
            tuple(node.token_id for node in nodes),
            positions[0],
            nodes[0].copied.run - 1,
            "store" if positions[0] < 0 else "context",
            tuple(node.parent for node in nodes),
            positions,
        )

    def _roots(self) -> Iterator[tuple[float, Continuation]]:
        """Where a tree may begin."""
        context, stored, rejected = self._context, self._stored, self._rejected
        match = context.link[context.last]
        length = context.length[match] if match > 0 else 0
        if length:
            yield 1.0, Matched(context, match, length, _PRIOR)
            shorter = context.link[match]
            if shorter > 0:
                yield _SHORTER, Matched(context, shorter, context.length[shorter], _PRIOR)
        if stored is not None and stored.length:
            yield 1.0, Matched(stored.automaton, stored.state, stored.length, _PRIOR_STORE)
            length = max(length, stored.length)
        if rejected and _may_resume(rejected.run, length):
            kept = _KEPT * rejected.run / (rejected.run + 1)
            position = rejected.position - 1
            yield _RESUMED, Resumed(rejected.source_ids, position, rejected.run, 1.0, kept)

    def _rejected_branch(self, path: Sequence[int]) -> _Candidate | None:
        """The source behind the likeliest draft token where the model chose another one."""
        last = path[-1] if path else -1
        node = next((node for node in self._nodes if node.parent == last), None)
        if node is None:
            return None
        copied = node.copied
        resumed = isinstance(copied, Resumed)
        if resumed and not path:
            return None
        return _Candidate((), copied.source_ids, copied.position + 1, copied.run - 1, 0.0, resumed)

    def _candidates(self, thresholds: Sequence[float]) -> Iterator[_Candidate]:
        """What may be drafted now; the first is preferred to its equals."""
        context, stored = self._context, self._stored
        match = context.link[context.last]
        length = context.length[match] if match > 0 else 0
        yield _follow(context, match, length, _PRIOR, thresholds)
        if stored is not None:
            yield _follow(stored.automaton, stored.state, stored.length, _PRIOR_STORE, thresholds)
            length = max(length, stored.length)
        if self._rejected and _may_resume(self._rejected.run, length):
            yield _resume(self._rejected, thresholds)


def _may_resume(run: int, match_length: int) -> bool:
    """Whether a run of copied tokens that was just rejected outweighs the current match."""
    return run >= 1 if match_length == 0 else match_length <= 6 and run >= 8


def _resume(rejected: _Candidate, thresholds: Sequence[float]) -> _Candidate:
    """The source behind a substituted token."""
    source_ids, position, run = rejected.source_ids, rejected.position, rejected.run
    token_ids: list[int] = []
    probability, expected = _RESUMED, 0.0
    kept = _KEPT * run / (run + 1)
    behind = source_ids[position : position + len(thresholds)]
    for threshold, token in zip(thresholds, behind, strict=False):
        if probability < threshold or token < 0:
            break
        token_ids.append(token)
        expected += probability
        probability *= kept
        kept = min(KEPT_MOST, kept + KEPT_MORE)
    return _Candidate(token_ids, source_ids, position, run, expected, True)


def _follow(
    automaton: SuffixAutomaton, state: int, length: int, prior: float, thresholds: Sequence[float]
) -> _Candidate:
    """The most frequent continuation of `state`, matched by the last `length` tokens."""
    token_ids: list[int] = []
    run = length
    if not length:
        return _Candidate(token_ids, automaton.token_ids, -1, run, 0.0)
    count, following, best, end = automaton.count, automaton.next, automaton.best, automaton.end
    num_tokens = len(automaton.token_ids)
    probability, expected, period = 1.0, 0.0, 0
    for threshold in thresholds:
        # The occurrence at the end of the source has no continuation yet.
        num_followed = count[state] - (end[state] == num_tokens)
        if num_followed > 0:
            token = best[state]
            after = following[state][token]
            probability *= count[after] / (num_followed + prior / length)
        else:
            period = period or len(token_ids)
            token, after = token_ids[-period], state
            probability *= length / (length + prior)
        if probability < threshold or token < 0:
            break
        token_ids.append(token)
        expected += probability
        length += 1
        state = after
    position = end[state] - (period or len(token_ids))
    return _Candidate(token_ids, automaton.token_ids, position, run, expected)
