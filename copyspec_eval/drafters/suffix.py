"""The longest repetition decides what to copy, and its counts decide how much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from copyspec_eval.drafters.automaton import SuffixAutomaton
from copyspec_eval.drafters.outcomes import (
    Guess,
    Limits,
    Outcomes,
    guess_counted,
    guess_resumed,
)
from copyspec_eval.drafters.recycling import NUM_KEPT, Recycled, Recycler
from copyspec_eval.drafters.store import AnswerStore, StoreMatch
from copyspec_eval.drafters.thresholds import worths
from copyspec_eval.drafters.tree import (
    KEPT_MORE,
    KEPT_MOST,
    Continuation,
    Matched,
    Node,
    Resumed,
    grow,
)
from copyspec_eval.types import CopyOrigin, Draft, Verdict, source_at

_CUE, _MOST_EARLIER = 16, 4
"""Of the prompt's last tokens, how many stand before an earlier answer to it, so that its first
tokens are found; and how many such answers are indexed, the latest."""

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
        resumed: whether a token was substituted just before them.
        probabilities: of each of them, that it and those before it are accepted.
        guesses: of each of them, that it follows those before it.
    """

    token_ids: list[int]
    source_ids: Sequence[int]
    position: int
    run: int
    resumed: bool = False
    probabilities: list[float] = field(default_factory=list)
    guesses: list[Guess] = field(default_factory=list)

    @property
    def expected(self) -> float:
        """How many tokens are expected to be accepted."""
        return sum(self.probabilities)

    def add(self, token_id: int, guess: Guess, probability: float) -> None:
        """Append a token."""
        self.token_ids.append(token_id)
        self.guesses.append(guess)
        self.probabilities.append(probability)


class SuffixDrafter:
    """Copies what most often followed the longest suffix that occurred before, while it is likely.

    A suffix automaton of prompt and output counts, for every length m of the match so far, how
    often which token followed its occurrences. The most frequent is drafted; the probability q that
    the draft is right so far falls by `count / (all + 2.5 / m)` per token, corrected by what became
    of earlier guesses of its kind, until q times the token's worth is under its acceptance
    threshold. At the end of the context the draft continues periodically. Where a copy has just
    been rejected after a long run, its source behind the substituted token is a second candidate,
    and what follows the longest match in a store of earlier answers, if there is one, a third; the
    one with the most expected tokens is drafted. Answers of earlier runs to the same request stand
    before the prompt, each behind the prompt's last tokens, and count like it.

    With `tree`, the likeliest tokens of all candidates and of the next shorter match are drafted
    together as a tree. With a recycler, tokens that the model itself held for likely compete with
    them for its places.

    Args:
        store: earlier answers; this request's is added when it is done.
        tree: see above.
        outcomes: of the run's drafts so far; this request's are added. None for this request alone.
        recycler: of this request; for a tree alone.

    Attributes:
        num_likeliest: see `ReadsLogits`.

    >>> drafter = SuffixDrafter()
    >>> drafter.start([5, 6, 7, 5, 6, 9, 5, 6, 9, 1, 5, 6])  # 5 6 was followed by 7, 9 and 9
    >>> draft = drafter.propose(max_tokens=100, thresholds=[0.05] * 100)
    >>> draft.token_ids, draft.position
    ((9, 1, 5), 8)

    With an earlier answer to the same request, its first tokens are drafted right away:

    >>> drafter = SuffixDrafter()
    >>> drafter.start([5, 6], earlier=[[7, 8, 9]])  # indexed as 5 6 7 8 9 -1 5 6
    >>> draft = drafter.propose(max_tokens=100, thresholds=[0.1] * 100)
    >>> draft.token_ids, draft.source
    ((7, 8, 9), 'earlier')
    """

    def __init__(
        self,
        store: AnswerStore | None = None,
        tree: bool = False,
        outcomes: Outcomes | None = None,
        recycler: Recycler | None = None,
    ) -> None:
        self._store = store
        self._tree = tree
        self._outcomes = outcomes or Outcomes()
        self._recycler = recycler
        self.num_likeliest = NUM_KEPT if recycler else 0
        self._nodes: list[Node] = []
        self._stored = [StoreMatch(automaton) for automaton in store.automata] if store else []
        self._context = SuffixAutomaton()
        self._num_earlier = 0
        self._num_prompt_tokens = 0
        self._drafted: _Candidate | None = None
        self._rejected: _Candidate | None = None

    def start(self, prompt_ids: Sequence[int], earlier: Sequence[Sequence[int]] = ()) -> None:
        """Index earlier answers, and the prompt."""
        for number, answer in enumerate(earlier[-_MOST_EARLIER:], start=1):
            # A negative token that occurs once, so that nothing is copied across an answer's end.
            for token in (*prompt_ids[-_CUE:], *answer, -number):
                self._context.append(token)
        self._num_earlier = len(self._context.token_ids)
        self._num_prompt_tokens = len(prompt_ids)
        self._append(prompt_ids)
        if self._recycler is not None:
            self._recycler.start(prompt_ids)

    def propose(self, max_tokens: int, thresholds: Sequence[float]) -> Draft:
        """The candidate from which the most tokens are expected to be accepted."""
        limits = Limits(thresholds[:max_tokens], worths(tuple(thresholds)), self._outcomes)
        if self._tree:
            return self._propose_tree(limits)
        candidates = self._candidates(limits)
        best = max(candidates, key=lambda candidate: candidate.expected)
        self._drafted = best if best.token_ids else None
        if self._drafted is None:
            return Draft()
        position = self._place(best.source_ids, best.position)
        return Draft(
            tuple(best.token_ids),
            position,
            source=source_at(position),
            probabilities=tuple(best.probabilities),
        )

    def observe(self, token_ids: Sequence[int], verdict: Verdict) -> None:
        """Index what was committed, and note where the draft was rejected after how long a run.

        The draft's tokens up to there are counted among the outcomes.
        """
        drafted, accepted = self._drafted, verdict.num_accepted
        self._rejected = None
        if verdict.path is not None:
            self._rejected = self._rejected_branch(verdict)
        elif (
            drafted
            and accepted < len(drafted.token_ids)
            # Else it was not verified: the draft was cut there.
            and drafted.token_ids[accepted] != verdict.next_token
            and (accepted or not drafted.resumed)
        ):
            position, run = drafted.position + accepted + 1, drafted.run + accepted
            resumed = drafted.resumed
            self._rejected = _Candidate([], drafted.source_ids, position, run, resumed=resumed)
        self._count(token_ids)
        self._append(token_ids)
        if self._recycler is not None:
            # A chain is of a draft model.
            of_tree = verdict.path is not None
            draft_ids = [node.token_id for node in self._nodes] if of_tree else token_ids[:-1]
            self._recycler.observe(draft_ids, verdict)

    def finish(self) -> None:
        """Keep the answer for later requests."""
        if self._store is not None:
            self._store.add(self._context.token_ids[self._num_earlier + self._num_prompt_tokens :])

    def _count(self, token_ids: Sequence[int]) -> None:
        """Which draft tokens followed, of those behind what followed so far."""
        if self._tree:
            drafted = [(node.parent, node.token_id, node.guess) for node in self._nodes]
        elif self._drafted:
            pairs = zip(self._drafted.token_ids, self._drafted.guesses, strict=True)
            drafted = [(index - 1, token, guess) for index, (token, guess) in enumerate(pairs)]
        else:
            return
        num_followed = {-1: 0}
        for index, (parent, token, guess) in enumerate(drafted):
            depth = num_followed.get(parent, len(token_ids))
            if depth < len(token_ids):
                self._outcomes.observe(guess, token == token_ids[depth])
                if token == token_ids[depth]:
                    num_followed[index] = depth + 1

    def _append(self, token_ids: Sequence[int]) -> None:
        for token in token_ids:
            self._context.append(token)
        for stored in self._stored:
            for token in token_ids:
                stored.advance(token)

    def _place(self, source_ids: Sequence[int], position: int) -> int:
        """The `Draft.position` of what is copied from index `position` of a source."""
        if source_ids is self._context.token_ids:
            own = position - self._num_earlier
            return own if own >= 0 else CopyOrigin.EARLIER
        is_earlier = any(
            source_ids is stored.automaton.token_ids and position < stored.automaton.num_earlier
            for stored in self._stored
        )
        return CopyOrigin.EARLIER if is_earlier else CopyOrigin.STORE

    def _place_of(self, copied: Continuation) -> int:
        if isinstance(copied, Recycled):
            return CopyOrigin.RECYCLED
        return self._place(copied.source_ids, copied.position)

    def _propose_tree(self, limits: Limits) -> Draft:
        self._nodes = nodes = grow(self._roots(), limits, self._recycler)
        if not nodes:
            return Draft()
        positions = tuple(self._place_of(node.copied) for node in nodes)
        return Draft(
            tuple(node.token_id for node in nodes),
            positions[0],
            source_at(positions[0]),
            tuple(node.parent for node in nodes),
            positions,
            tuple(node.probability for node in nodes),
        )

    def _roots(self) -> Iterator[Continuation]:
        """Where a tree may begin."""
        context, rejected = self._context, self._rejected
        match = context.link[context.last]
        length = context.length[match] if match > 0 else 0
        if length:
            yield Matched(context, match, length, "context")
            shorter = context.link[match]
            if shorter > 0:
                yield Matched(context, shorter, context.length[shorter], "context", _SHORTER)
        for stored in self._stored:
            if stored.length:
                yield Matched(stored.automaton, stored.state, stored.length, "store")
                length = max(length, stored.length)
        if rejected and _may_resume(rejected.run, length):
            kept = _KEPT * rejected.run / (rejected.run + 1)
            position = rejected.position - 1
            yield Resumed(rejected.source_ids, position, rejected.run, _RESUMED, kept)

    def _rejected_branch(self, verdict: Verdict) -> _Candidate | None:
        """The source behind the likeliest draft token where the model chose another one."""
        path = verdict.path or ()
        last = path[-1] if path else -1
        node = next(
            (
                node
                for node in self._nodes
                if node.parent == last and not isinstance(node.copied, Recycled)
            ),
            None,
        )
        if node is None or node.token_id == verdict.next_token:
            return None
        copied = node.copied
        resumed = isinstance(copied, Resumed)
        if resumed and not path:
            return None
        position, run = copied.position + 1, copied.run - 1
        return _Candidate([], copied.source_ids, position, run, resumed=resumed)

    def _candidates(self, limits: Limits) -> Iterator[_Candidate]:
        """What may be drafted now; the first is preferred to its equals."""
        context = self._context
        match = context.link[context.last]
        length = context.length[match] if match > 0 else 0
        yield _follow(context, match, length, "context", limits)
        for stored in self._stored:
            yield _follow(stored.automaton, stored.state, stored.length, "store", limits)
            length = max(length, stored.length)
        if self._rejected and _may_resume(self._rejected.run, length):
            yield _resume(self._rejected, limits)


def _may_resume(run: int, match_length: int) -> bool:
    """Whether a run of copied tokens that was just rejected outweighs the current match."""
    return run >= 1 if match_length == 0 else match_length <= 6 and run >= 8


def _resume(rejected: _Candidate, limits: Limits) -> _Candidate:
    """The source behind a substituted token."""
    source_ids, position, run = rejected.source_ids, rejected.position, rejected.run
    resumed = _Candidate([], source_ids, position, run, resumed=True)
    probability, estimate = 1.0, _RESUMED
    kept = _KEPT * run / (run + 1)
    behind = source_ids[position : position + len(limits.thresholds)]
    for index, token in enumerate(behind):
        guess = guess_resumed(run + index, estimate)
        probability, value = limits.weigh(probability, guess)
        if value < limits.thresholds[index] or token < 0:
            break
        resumed.add(token, guess, probability)
        estimate, kept = kept, min(KEPT_MOST, kept + KEPT_MORE)
    return resumed


def _follow(
    automaton: SuffixAutomaton,
    state: int,
    length: int,
    source: Literal["context", "store"],
    limits: Limits,
) -> _Candidate:
    """The most frequent continuation of `state`, matched by the last `length` tokens."""
    followed = _Candidate([], automaton.token_ids, -1, length)
    if not length:
        return followed
    count, following, best, end = automaton.count, automaton.next, automaton.best, automaton.end
    token_ids, num_tokens = followed.token_ids, len(automaton.token_ids)
    probability, period = 1.0, 0
    for threshold in limits.thresholds:
        # The occurrence at the end of the source has no continuation yet.
        num_followed = count[state] - (end[state] == num_tokens)
        if num_followed > 0:
            token = best[state]
            after = following[state][token]
            guess = guess_counted(source, length, count[after], num_followed)
        else:
            period = period or len(token_ids)
            token, after = token_ids[-period], state
            guess = guess_counted(source, length, 1, 1)
        probability, value = limits.weigh(probability, guess)
        if value < threshold or token < 0:
            break
        followed.add(token, guess, probability)
        length += 1
        state = after
    followed.position = end[state] - (period or len(token_ids))
    return followed
