"""What a drafter is, and the drafter that never drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from copyspec_eval.types import Draft, Verdict


class Drafter(Protocol):
    """Guesses the next tokens of one request; may be wrong, can never change the output.

    A drafter lives for one request: `start`, `observe` with the prefill's token, and then
    `propose`, `observe` in turns until the request is done.
    """

    def start(self, prompt_ids: Sequence[int]) -> None:
        """Begin a request whose prompt is `prompt_ids`."""

    def propose(self, max_tokens: int) -> Draft:
        """At most `max_tokens` tokens that may follow what was observed; empty for no guess.

        `max_tokens` is one less than the tokens that may still be generated, since the model adds
        one of its own to whatever it accepts.
        """

    def observe(self, token_ids: Sequence[int], verdict: Verdict | None) -> None:
        """Take note of newly generated tokens, and of what became of the draft before them.

        `verdict` is None for the prefill's token.
        """


class NoDrafter:
    """Never drafts: plain one-token decoding, the baseline of every speed-up."""

    def start(self, prompt_ids: Sequence[int]) -> None:
        """Nothing to prepare."""

    def propose(self, max_tokens: int) -> Draft:
        """No guess."""
        return Draft()

    def observe(self, token_ids: Sequence[int], verdict: Verdict | None) -> None:
        """Nothing to remember."""
