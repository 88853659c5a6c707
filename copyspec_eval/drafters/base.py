"""The drafter protocol, and the drafter that never drafts."""

from collections.abc import Sequence
from typing import Protocol

from copyspec_eval.types import Draft, Verdict


class Drafter(Protocol):
    """Proposes the next tokens of one request; a wrong draft costs time, never the output.

    A drafter lives for one request: `start`, then `propose` and `observe` in turns, then `finish`.
    The first `propose` is for the prefill. A step that can carry no draft skips it, e.g. a prefill
    at a fixed width or with the model's own cache. `CopySpecDrafter` is a short example.
    """

    def start(self, prompt_ids: Sequence[int], earlier: Sequence[Sequence[int]] = ()) -> None:
        """Begin a request; `earlier` are answers of earlier runs to it, the latest last."""
        return

    def propose(self, budget: int, longest: int, threshold: float) -> Draft:
        """Return tokens that may follow the context; empty for no draft.

        At most `budget` tokens may be accepted; the model adds one of its own to them. A draft of
        more than that, or of more than `longest` tokens, is cut. `threshold` is the acceptance
        threshold: the least probability of being accepted at which to draft a token that is worth
        as much as any (see `acceptance_threshold`, `marginal_values`).
        """

    def observe(self, token_ids: Sequence[int], verdict: Verdict) -> None:
        """Take newly committed tokens, and the verdict on the draft that they follow from."""
        return

    def finish(self) -> None:
        """The request is done: `observe` has had its last token."""
        return


class NoDrafter(Drafter):
    """Never drafts: plain one-token decoding, the baseline of every speed-up."""

    def propose(self, budget: int, longest: int, threshold: float) -> Draft:
        return Draft()
