"""The longest repetition decides what to copy, and its counts decide how much."""

from collections.abc import Iterator, Sequence

from copyspec_eval.drafters.automaton import AnswerStore, StoreMatch, SuffixAutomaton
from copyspec_eval.drafters.base import Drafter
from copyspec_eval.drafters.outcomes import Limits, Outcomes
from copyspec_eval.drafters.thresholds import marginal_values
from copyspec_eval.drafters.tree import Copied, Matched, Node, Resumed, chain, grow
from copyspec_eval.types import CopyOrigin, Draft, Verdict, source_at

# How many of the prompt's last tokens go before an earlier answer to it, so that its first tokens
# are matched; and how many such answers, the latest, are indexed.
_CUE, _MOST_EARLIER = 16, 4
# Probability that a copy resumes after a substitution, and that it continues by a token then.
_RESUMED, _CONTINUED = 0.2, 0.84
_SHORTER = 0.5  # probability that a tree gives to what followed the next shorter match


class SuffixDrafter(Drafter):
    """Copies what most often followed the longest suffix that occurred before, while it is likely.

    A suffix automaton of prompt and output counts, for every length m of the match so far, how
    often each token followed its occurrences. The most frequent is drafted; the probability q that
    the draft is right so far falls by `count / (all + 2.5 / m)` per token, corrected by what became
    of earlier guesses of its kind, until q times the token's value is under its acceptance
    threshold. At the end of the context the draft continues periodically. Two more candidates are
    the source of a long copy that was just rejected, after the substituted token, and what follows
    the longest match in a store of earlier answers. The candidate with the most expected tokens is
    drafted. Answers of earlier runs to the same request stand before the prompt, each after the
    prompt's last tokens, and count like it.

    With `tree`, the likeliest tokens of all candidates and of the next shorter match are drafted
    together as a tree.

    The request adds its answer to `store` and its drafts to `outcomes`; by default it counts alone.

    >>> drafter = SuffixDrafter()
    >>> drafter.start([5, 6, 7, 5, 6, 9, 5, 6, 9, 1, 5, 6])  # 5 6 was followed by 7, 9 and 9
    >>> draft = drafter.propose(budget=100, longest=100, threshold=0.05)
    >>> draft.token_ids, draft.position
    ((9, 1, 5), 8)
    """

    def __init__(
        self, store: AnswerStore | None = None, tree: bool = False, outcomes: Outcomes | None = None
    ) -> None:
        self._store, self._tree = store, tree
        self._outcomes = outcomes or Outcomes()
        self._stored = [StoreMatch(automaton) for automaton in store.automata] if store else []
        self._context = SuffixAutomaton()
        self._num_prompt_tokens = 0
        self._nodes: list[Node] = []
        self._rejected: Resumed | None = None

    def start(self, prompt_ids: Sequence[int], earlier: Sequence[Sequence[int]] = ()) -> None:
        for answer in earlier[-_MOST_EARLIER:]:
            self._context.append_answer((*prompt_ids[-_CUE:], *answer))
        self._context.num_earlier = len(self._context.token_ids)
        self._num_prompt_tokens = len(prompt_ids)
        self._append(prompt_ids)

    def propose(self, budget: int, longest: int, threshold: float) -> Draft:
        """The candidate from which the most tokens are expected to be accepted, or a tree."""
        values = marginal_values(threshold, longest)
        limits = Limits(min(budget, longest), threshold, values, self._outcomes)
        if self._tree:
            nodes = grow(self._roots(), limits)
        else:
            chains = (chain(root, limits) for root in self._roots())
            nodes = max(chains, key=lambda nodes: sum(n.probability for n in nodes), default=[])
        self._nodes = nodes
        if not nodes:
            return Draft()
        position = self._position(nodes[0].copied)
        token_ids = tuple(node.token_id for node in nodes)
        parents = tuple(node.parent for node in nodes) if self._tree else None
        positions = tuple(self._position(node.copied) for node in nodes) if self._tree else ()
        probabilities = tuple(node.probability for node in nodes)
        return Draft(token_ids, position, source_at(position), parents, positions, probabilities)

    def observe(self, token_ids: Sequence[int], verdict: Verdict) -> None:
        """Index what was committed; note where the draft was rejected, and after how long a run."""
        is_chain = verdict.path is None  # of a draft model, where trees are drafted
        self._rejected = None if self._tree and is_chain else self._rejected_copy(verdict)
        self._count(token_ids)
        self._append(token_ids)

    def finish(self) -> None:
        if self._store is not None:
            start = self._context.num_earlier + self._num_prompt_tokens
            self._store.add(self._context.token_ids[start:])

    def _count(self, token_ids: Sequence[int]) -> None:
        """Record which draft tokens followed, of those whose predecessors all followed."""
        num_followed = {-1: 0}
        for index, node in enumerate(self._nodes):
            depth = num_followed.get(node.parent, len(token_ids))
            if depth < len(token_ids):
                followed = node.token_id == token_ids[depth]
                self._outcomes.observe(node.guess, followed)
                if followed:
                    num_followed[index] = depth + 1

    def _append(self, token_ids: Sequence[int]) -> None:
        for token in token_ids:
            self._context.append(token)
            for stored in self._stored:
                stored.advance(token)

    def _position(self, copied: Copied) -> int:
        if (position := copied.position - copied.automaton.num_earlier) < 0:
            return CopyOrigin.EARLIER
        return position if copied.automaton is self._context else CopyOrigin.STORE

    def _roots(self) -> Iterator[Copied]:
        """Where a draft may begin; the first is preferred to its equals."""
        context, rejected = self._context, self._rejected
        match = context.link[context.last]
        length = context.length[match] if match > 0 else 0
        if length:
            yield Matched(context, match, length, "context")
            shorter = context.link[match]
            if self._tree and shorter > 0:
                yield Matched(context, shorter, context.length[shorter], "context", weight=_SHORTER)
        for stored in self._stored:
            if stored.length:
                yield Matched(stored.automaton, stored.state, stored.length, "store")
                length = max(length, stored.length)
        # A run that was just rejected beats no match, and a long one a short match.
        if rejected and length <= 6 and rejected.run >= (8 if length else 1):
            yield rejected

    def _rejected_copy(self, verdict: Verdict) -> Resumed | None:
        """The source after the likeliest draft token, where the model chose another one."""
        path = range(verdict.num_accepted) if verdict.path is None else verdict.path
        last = path[-1] if path else -1
        for node in self._nodes:
            copied = node.copied
            if node.parent != last:
                continue
            gives_up = isinstance(copied, Resumed) and not path
            if gives_up or node.token_id == verdict.next_token:
                return None
            run = copied.run - 1
            continued = _CONTINUED * run / (run + 1)
            return Resumed(copied.automaton, copied.position, run, _RESUMED, continued)
        return None
