"""One request while it is decoded: its tokens, its drafter, and what became of each draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from copyspec_eval.decoding.verify import verify
from copyspec_eval.drafters.base import Drafter
from copyspec_eval.types import Attempt, Draft, FinishReason, Span, Verdict


class Row:
    """The state of one request; the model's forward is not its business.

    Life: `propose` and `settle` in turns until `finish_reason` is set, first for the prefill, which
    may as well be settled with no draft. The engine and the replay both drive it, so a replay
    counts exactly the forwards that the engine makes.

    Args:
        prompt_ids: the prompt.
        drafter: a drafter of this request alone.
        max_new_tokens: the token budget, which no draft exceeds.
        finish: why the output ends with its last token, or None; asked after every token.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        drafter: Drafter,
        max_new_tokens: int,
        finish: Callable[[Sequence[int]], FinishReason | None],
    ) -> None:
        self.prompt_ids = tuple(prompt_ids)
        self.output_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.num_forwards = 0
        self.num_prefill_tokens = 0
        self.attempts: list[Attempt] = []
        self.spans: list[Span] = []
        self._drafter = drafter
        self._max_new_tokens = max_new_tokens
        self._finish = finish
        drafter.start(prompt_ids)

    @property
    def length(self) -> int:
        """Tokens of prompt and output together."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def text(self) -> list[int]:
        """Prompt and output."""
        return [*self.prompt_ids, *self.output_ids]

    @property
    def budget(self) -> int:
        """How many draft tokens may be accepted, with a token of the model's own behind them."""
        return self._max_new_tokens - len(self.output_ids) - 1

    def propose(self, prices: Sequence[float]) -> Draft:
        """A draft for the next step, as long as `prices` and the token budget allow."""
        draft = self._drafter.propose(self.budget, prices)
        most = min(len(prices), self.budget)
        if len(draft.token_ids) <= most:
            return draft
        return replace(
            draft,
            token_ids=draft.token_ids[:most],
            parents=None if draft.parents is None else draft.parents[:most],
            positions=draft.positions[:most],
        )

    def settle(self, draft: Draft, choose: Callable[[int], int]) -> Verdict:
        """Verify `draft` by `choose` (see `verify`) and take the tokens that it leads to.

        An EOS or stop string inside the accepted part ends the row there.
        """
        verdict = verify(draft, choose)
        start = len(self.output_ids)
        path = range(verdict.num_accepted) if verdict.path is None else verdict.path
        accepted = [draft.token_ids[node] for node in path]
        kept = self._append([*accepted, verdict.next_token])
        num_copied = min(len(kept), verdict.num_accepted)
        self.num_forwards += 1
        self.num_prefill_tokens = self.num_prefill_tokens or len(kept)
        if draft.token_ids:
            self.attempts.append(Attempt(len(draft.token_ids), num_copied, draft.source))
        if num_copied and draft.source != "model":
            self.spans += _spans(draft, path[:num_copied], start)
        self._drafter.observe(kept, verdict)
        if self.finish_reason is not None:
            self._drafter.finish()
        return verdict

    def _append(self, token_ids: Sequence[int]) -> list[int]:
        kept = []
        for token in token_ids:
            self.output_ids.append(token)
            kept.append(token)
            self.finish_reason = self._finish(self.output_ids)
            if self.finish_reason is not None:
                break
        return kept


def _spans(draft: Draft, path: Sequence[int], start: int) -> list[Span]:
    """Where the tokens of `path`, at `start` of the output and after, were copied from."""
    if draft.parents is None:
        return [Span(start, len(path), draft.position)]
    spans: list[Span] = []
    for offset, node in enumerate(path):
        source, last = draft.positions[node], spans[-1] if spans else None
        goes_on = last and source == (-1 if last.source < 0 else last.source + last.length)
        if last and goes_on:
            spans[-1] = replace(last, length=last.length + 1)
        else:
            spans.append(Span(start + offset, 1, source))
    return spans
