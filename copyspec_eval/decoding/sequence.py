"""One request while it is decoded: what was asked, its tokens so far, what became of each draft."""

from collections import Counter, abc
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.base import Drafter, NoDrafter
from copyspec_eval.loops import looped_tokens
from copyspec_eval.types import (
    COPIED,
    Attempt,
    Draft,
    DraftCounts,
    DraftSource,
    FinishReason,
    Generation,
    Span,
    TurnCounts,
    Verdict,
)

if TYPE_CHECKING:  # a replay needs no torch
    import torch

    from copyspec_eval.decoding.choosing import TokenChooser


class Sequence:
    """A prompt, its output so far, and the state of decoding it.

    Life: `start`, then `propose` and `commit` in turns until `finish_reason` is set, first for the
    prefill, which may carry no draft. The engine and the replay both drive it, so a replay counts
    exactly the forwards that the engine makes.

    Args:
        stop_rule: when the output ends; its budget is never exceeded.
        chooser: how the model chooses its tokens; only a replay needs none.
        earlier: answers of earlier runs to the same request, the latest last.
        on_commit: called with the tokens of every step as soon as they are committed.

    Attributes:
        row, extent: the cache row that it occupies, and the positions that it may need there.
        started: time on the engine's stopwatch when its prefill began.
    """

    def __init__(
        self,
        prompt_ids: Iterable[int],
        stop_rule: StopRule,
        chooser: "TokenChooser | None" = None,
        earlier: abc.Sequence[abc.Sequence[int]] = (),
        on_commit: Callable[[list[int]], None] = lambda token_ids: None,
    ) -> None:
        self.on_commit = on_commit
        self.prompt_ids = tuple(prompt_ids)
        self.stop_rule = stop_rule
        self.earlier = earlier
        self._chooser = chooser
        self.output_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.drafter: Drafter = NoDrafter()
        self.num_forwards = 0
        self.num_prefill_tokens = 0
        self.num_reused_tokens = 0
        self.attempts: list[Attempt] = []
        self.spans: list[Span] = []
        self._num_drafted: Counter[DraftSource] = Counter()
        self._num_accepted: Counter[DraftSource] = Counter()
        self.row = 0
        self.extent = 0
        self.started = 0.0
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0

    def restarted(self) -> "Sequence":
        """The same request, not yet begun; it shares the chooser, which starts anew with it."""
        return Sequence(
            self.prompt_ids, self.stop_rule, self._chooser, self.earlier, self.on_commit
        )

    @property
    def chooser(self) -> "TokenChooser":
        assert self._chooser is not None, "a replay has no model"
        return self._chooser

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def max_length(self) -> int:
        """Prompt and whole budget, in tokens."""
        return len(self.prompt_ids) + self.stop_rule.max_new_tokens

    @property
    def token_ids(self) -> list[int]:
        return [*self.prompt_ids, *self.output_ids]

    @property
    def unread_ids(self) -> abc.Sequence[int]:
        """What is fed next: what is left of the prompt, later the last token."""
        return self.output_ids[-1:] or self.prompt_ids[self.num_reused_tokens :]

    @property
    def budget(self) -> int:
        """How many draft tokens may be accepted, with one token of the model's own after them."""
        return self.stop_rule.max_new_tokens - len(self.output_ids) - 1

    def start(self, drafter: Drafter, row: int = 0, time: float = 0.0) -> None:
        """Begin with `drafter`, in a row of the cache, at a time on the engine's stopwatch."""
        assert not self.num_forwards, "begun before; use restarted()"
        self.drafter, self.row, self.started = drafter, row, time
        if self._chooser is not None:
            self._chooser.restart()
        drafter.start(self.prompt_ids, self.earlier)

    def propose(self, longest: int, threshold: float) -> Draft:
        """A draft for the next step, cut to the `longest` and to the token budget."""
        draft = self.drafter.propose(self.budget, longest, threshold)
        return draft.cut(min(longest, self.budget))

    def choices(
        self, draft: Draft, argmax: abc.Sequence[int], logits: "torch.Tensor"
    ) -> Callable[[int], int]:
        """The model's choices, for `commit`, from logits `[1 + draft, vocabulary]`."""
        if self.chooser.is_argmax:
            return argmax.__getitem__
        prefix_ids = self.token_ids

        def choose(index: int) -> int:
            # Asked only after the tokens that lead there were accepted, one by one.
            if index:
                prefix_ids.append(draft.token_ids[index - 1])
            return self.chooser.choose(prefix_ids, logits[index])

        return choose

    def commit(self, draft: Draft, choose: Callable[[int], int]) -> Verdict:
        """Verify `draft` by `choose`; append the accepted tokens and the next, up to an end."""
        verdict = verify(draft, choose)
        start = len(self.output_ids)
        path = range(verdict.num_accepted) if verdict.path is None else verdict.path
        accepted_ids = [draft.token_ids[node] for node in path]
        committed_ids = self._append([*accepted_ids, verdict.next_token])
        self.num_forwards += 1
        self.num_prefill_tokens = self.num_prefill_tokens or len(committed_ids)
        if draft.token_ids:
            self._record(draft, list(path[: len(committed_ids)]), start)
        self.on_commit(committed_ids)
        self.drafter.observe(committed_ids, verdict)
        if self.finish_reason is not None:
            self.drafter.finish()
            self.drafter = NoDrafter()  # its index is large, and finished sequences are kept
        return verdict

    def counts(self) -> TurnCounts:
        """The counts so far, without the seconds."""
        num_attempts = Counter(attempt.source for attempt in self.attempts)
        return TurnCounts(
            num_prompt_tokens=len(self.prompt_ids),
            num_reused_tokens=self.num_reused_tokens,
            num_tokens=len(self.output_ids),
            num_looped_tokens=(
                looped_tokens(self.output_ids) if self.finish_reason == "length" else 0
            ),
            num_forwards=self.num_forwards,
            num_prefill_tokens=self.num_prefill_tokens,
            drafts={
                source: DraftCounts(num_attempts[source], num_drafted, self._num_accepted[source])
                for source, num_drafted in self._num_drafted.items()
            },
            finish_reason=self.finish_reason,
        )

    def generation(self, ended: float, batch_size: int) -> Generation:
        """The answer of a finished sequence; `ended` is a time on the engine's stopwatch."""
        counts = replace(
            self.counts(),
            seconds=self.prefill_seconds + self.decode_seconds,
            prefill_seconds=self.prefill_seconds,
            decode_seconds=self.decode_seconds,
            latency_seconds=ended - self.started,
        )
        return Generation(
            tuple(self.output_ids), counts, tuple(self.attempts), tuple(self.spans), batch_size
        )

    def _append(self, token_ids: list[int]) -> list[int]:
        """Append tokens up to the one that ends the output; returns those appended."""
        start = len(self.output_ids)
        for token in token_ids:
            self.output_ids.append(token)
            self.finish_reason = self.stop_rule.reason(self.output_ids)
            if self.finish_reason is not None:
                break
        return self.output_ids[start:]

    def _record(self, draft: Draft, path: list[int], start: int) -> None:
        """Count a draft whose tokens `path` were accepted, from `start` of the output on."""
        sources = list(map(draft.source_of, range(len(draft.token_ids))))
        # A tree with a copy in it is an attempt to copy.
        source = next((each for each in sources if each in COPIED), sources[0])
        self.attempts.append(Attempt(len(draft.token_ids), len(path), source))
        self._num_drafted.update(sources)
        self._num_accepted.update(sources[node] for node in path)
        if path and sources[0] != "model":
            self.spans += _spans(draft, path, start)


def _spans(draft: Draft, path: list[int], start: int) -> list[Span]:
    """Where the tokens of `path`, at `start` of the output and after, were copied from."""
    if draft.parents is None:
        return [Span(start, len(path), draft.position)]
    spans: list[Span] = []
    for offset, node in enumerate(path):
        source, last = draft.positions[node], spans[-1] if spans else None
        if last and source == last.source + (last.length if last.source >= 0 else 0):
            spans[-1] = last._replace(length=last.length + 1)
        else:
            spans.append(Span(start + offset, 1, source))
    return spans


def verify(draft: Draft, choose: Callable[[int], int]) -> Verdict:
    """Accept the draft's tokens for as long as the model chooses the same ones.

    `choose(0)` is the model's own token before the draft and `choose(i)` the one after draft token
    `i - 1`; it is called in order, and only after the tokens that lead there were accepted. In a
    tree the walk continues with the child that the model chooses.

    A `choose` that draws from the model's distribution p accepts a draft token x with probability
    p(x), and replaces a rejected one by y given y ≠ x, so each emitted token has distribution p.
    This is min(1, p/q) of Leviathan et al. (arXiv 2211.17192) for q(x) = 1.

    >>> verify(Draft((7, 8, 9)), lambda i: [7, 8, 4, 5][i])
    Verdict(num_accepted=2, next_token=4, path=None)
    >>> verify(Draft((7, 8, 6), parents=(-1, 0, -1)), lambda i: [6, 0, 0, 5][i])  # 7 8, or 6
    Verdict(num_accepted=1, next_token=5, path=(2,))
    """
    parents = range(-1, len(draft.token_ids) - 1) if draft.parents is None else draft.parents
    children = {
        (parent, token): node
        for node, (parent, token) in enumerate(zip(parents, draft.token_ids, strict=True))
    }
    path: list[int] = []
    node = -1
    while (child := children.get((node, token := choose(node + 1)))) is not None:
        path.append(child)
        node = child
    return Verdict(len(path), token, None if draft.parents is None else tuple(path))
