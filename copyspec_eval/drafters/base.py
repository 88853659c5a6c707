"""What a drafter is, and the drafter that never drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from copyspec_eval.types import Draft, Verdict


class Drafter(Protocol):
    """Guesses the next tokens of one request; may be wrong, can never change the output.

    A drafter lives for one request: `start`, then `propose` and `observe` in turns until the
    request is done. The first `propose` is for the prefill; in exact mode, where a prefill carries
    no draft, it is left out.
    """

    def start(self, prompt_ids: Sequence[int]) -> None:
        """Begin a request whose prompt is `prompt_ids`."""

    def propose(self, max_tokens: int, prices: Sequence[float]) -> Draft:
        """At most `max_tokens` tokens that may follow what was observed; empty for no guess.

        Args:
            max_tokens: one less than the tokens that may still be generated, since the model adds
                one of its own to whatever it accepts.
            prices: of each draft token, the least chance of being accepted at which it is worth
                the time that it costs (see `prices`); more tokens than prices are not verified.
        """

    def observe(self, token_ids: Sequence[int], verdict: Verdict) -> None:
        """Take note of newly generated tokens, and of what became of the draft before them."""

    def finish(self) -> None:
        """The request is done: `observe` had its last token."""


class NoDrafter:
    """Never drafts: plain one-token decoding, the baseline of every speed-up."""

    def start(self, prompt_ids: Sequence[int]) -> None:
        """Nothing to prepare."""

    def propose(self, max_tokens: int, prices: Sequence[float]) -> Draft:
        """No guess."""
        return Draft()

    def observe(self, token_ids: Sequence[int], verdict: Verdict) -> None:
        """Nothing to remember."""

    def finish(self) -> None:
        """Nothing to keep."""
