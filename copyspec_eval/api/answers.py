"""An answer with what it took: text, tokens, copied stretches, counts and times."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass, field

from copyspec_eval.records import SpanCharacters, segments
from copyspec_eval.types import COPIED, Attempt, CopyOrigin, FinishReason, Span, TurnCounts

_MARK = "background:rgba(255,176,0,.35);border-radius:3px"
_LONGEST_SOURCE = 60
"""Characters of a source in a tooltip."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answered prompt; in a notebook it shows itself with its copied text marked.

    Attributes:
        text: the answer without special tokens, cut before a stop string.
        token_ids: as generated, with the EOS token if it ended on one.
        spans: the stretches of `token_ids` that were copied, and where from.
        counts: forwards, drafted and accepted tokens, seconds.
        attempts: the forwards that verified a draft, in order.
        prompt: the prompt as the model read it, special tokens included.
        whole_text: the text of `token_ids`, special tokens included.
        span_characters: where the spans stand in `whole_text`, and their sources in prompt and
            `whole_text` together.
    """

    text: str
    token_ids: tuple[int, ...] = field(repr=False)
    spans: tuple[Span, ...] = field(repr=False)
    counts: TurnCounts = field(repr=False)
    attempts: tuple[Attempt, ...] = field(repr=False)
    prompt: str = field(repr=False)
    whole_text: str = field(repr=False)
    span_characters: tuple[SpanCharacters, ...] = field(repr=False)

    @property
    def finish_reason(self) -> FinishReason | None:
        """`eos`, `stop` (a stop string, or another criterion) or `length`."""
        return self.counts.finish_reason

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of this answer, with its prefill."""
        return len(self.token_ids) / (self.counts.seconds or float("nan"))

    @property
    def tokens_per_forward(self) -> float:
        """Tokens per forward, of which the prefill is one; 1 without drafts."""
        return len(self.token_ids) / (self.counts.num_forwards or 1)

    @property
    def copied_share(self) -> float:
        """Share of the tokens that were copied, between 0 and 1."""
        drafts = self.counts.drafts or {}
        copied = sum(drafts[source].num_accepted for source in COPIED if source in drafts)
        return copied / len(self.token_ids)

    def _repr_html_(self) -> str:
        """The answer for a notebook: copied text marked, its source in the tooltip."""
        figures = (
            f"{len(self.token_ids)} tokens in {self.counts.num_forwards} forwards "
            f"({self.tokens_per_forward:.2f} a forward), {self.copied_share:.0%} copied, "
            f"{self.tokens_per_second:.0f} tokens/s"
        )
        return (
            f'<div style="white-space:pre-wrap">{"".join(self._pieces())}</div>'
            f'<div style="opacity:.7;font-size:85%">{figures}</div>'
        )

    def _pieces(self) -> Iterator[str]:
        for piece, *source in segments(self.whole_text, self.span_characters):
            text = html.escape(piece)
            if source:
                title = html.escape(self._source_text(*source), quote=True)
                text = f'<mark style="{_MARK};color:inherit" title="{title}">{text}</mark>'
            yield text

    def _source_text(self, start: int, end: int) -> str:
        if start < 0:
            is_stored = start == CopyOrigin.STORE
            return "from an earlier answer" if is_stored else "from the model's runners-up"
        copied = (self.prompt + self.whole_text)[start:end]
        where = "the prompt" if start < len(self.prompt) else "this answer"
        cut = copied if len(copied) <= _LONGEST_SOURCE else copied[:_LONGEST_SOURCE] + "…"
        return f"copied from {where}: {cut}"
