"""The vocabulary: plain values that the floors above hand to each other. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from copyspec_eval.errors import OptionError

FinishReason = Literal["eos", "stop", "length"]

Agreement = Literal["identical", "near_tie", "diverged"]
"""How an answer compares with the baseline's: the same tokens; a first difference that rounding
explains; or one that it does not."""

DraftSource = Literal["context", "store", "model"]
"""Where draft tokens come from: copied from prompt and output, or from an earlier answer of the
run; or said by a draft model."""

EXACT_WIDTHS = (8, 16, 32)
"""Step widths in tokens whose kernels give the same bits whatever was drafted (11 does not)."""


PAPER_GAMMA = 3
"""The paper's usual γ, in tokens."""


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """How to draft.

    Attributes:
        drafter: name in the registry of `copyspec_eval.drafters`.
        gamma: the paper's γ: how many trailing tokens must have occurred before, in tokens; for
            `copyspec` alone.
        num_draft_tokens: the most tokens of a draft (the paper copies 10); None for the drafter's
            own number.
        store: whether to copy from earlier answers of the run, too.
        tree: whether to draft several continuations at once.
        draft_model: name or folder of a smaller model that drafts where the drafter has no draft.
        delta: the paper's δ: how many tokens the draft model says at a time.

    Raises:
        OptionError: a number that is not an integer of at least 1, a switch that is no bool, or a
            switch that the drafter does not have.
    """

    drafter: str = "copyspec"
    gamma: int = PAPER_GAMMA
    num_draft_tokens: int | None = None
    store: bool = False
    tree: bool = False
    draft_model: str | None = None
    delta: int = 5

    def __post_init__(self) -> None:
        for name, usual in (("gamma", PAPER_GAMMA), ("num_draft_tokens", 10), ("delta", 5)):
            value = getattr(self, name)
            own = name == "num_draft_tokens" and value is None
            if not own and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise OptionError(
                    f"{name}={value!r} is not an integer of at least 1; usual is {usual}"
                )
        for name in ("store", "tree"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise OptionError(f"{name}={value!r} is neither true nor false")


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that a drafter believes come next; empty means no belief.

    A draft is a chain, or a tree of several continuations that share their beginnings.

    Attributes:
        token_ids: the drafted tokens, at most as many as were asked for.
        position: index in prompt + output of the first copied token, or -1 when not copied from
            there; of a tree, of its first token.
        match_length: how many trailing tokens matched at the source, in tokens.
        source: where the tokens come from.
        parents: of a tree, the index of the token before each token, -1 for none, always lower
            than its own; None for a chain.
        positions: of a tree, `position` of each token.
    """

    token_ids: tuple[int, ...] = ()
    position: int = -1
    match_length: int = 0
    source: DraftSource = "context"
    parents: tuple[int, ...] | None = None
    positions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the model said of a draft.

    Attributes:
        num_accepted: leading draft tokens that the model would have produced itself.
        next_token: the model's own token after those; a step emits `num_accepted + 1` tokens.
        path: indices of the accepted tokens; None for a chain, where they are the first ones.
    """

    num_accepted: int
    next_token: int
    path: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One target forward that verified a draft, in tokens."""

    num_drafted: int
    num_accepted: int
    source: DraftSource = "context"

    @property
    def num_copied(self) -> int:
        """Those of the accepted tokens that were copied, which are all or none."""
        return 0 if self.source == "model" else self.num_accepted


@dataclass(frozen=True, slots=True)
class Span:
    """Output tokens `[start, start + length)` that were copied from `source` on.

    `start` counts from the first output token, `source` from the first prompt token; it is -1 for
    a copy from an earlier answer of the run.
    """

    start: int
    length: int
    source: int


def first_difference(a: Sequence[object], b: Sequence[object]) -> int | None:
    """Index of the first item that differs, or at which one has ended; None if they are equal.

    >>> first_difference("cat", "car"), first_difference([1], [1, 2]), first_difference("", "")
    (2, 1, None)
    """
    shorter = min(len(a), len(b))
    unequal = (i for i in range(shorter) if a[i] != b[i])
    return next(unequal, None if len(a) == len(b) else shorter)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two answers to one prompt differ.

    Attributes:
        position: index of the first differing token in the output, from 0.
        token_id, baseline_token_id: what stands there in either answer; None where it has ended.
        margin: by how much the logits would have to change, against each other, for the model to
            choose either token there; None where no change would do.
        noise: the largest change of a logit by rounding alone that was measured around there.
    """

    position: int
    token_id: int | None
    baseline_token_id: int | None
    margin: float | None
    noise: float

    @property
    def agreement(self) -> Agreement:
        """A near-tie if rounding can turn it: two logits then move apart by twice the noise."""
        near = self.margin is not None and self.margin <= 2 * self.noise
        return "near_tie" if near else "diverged"


@dataclass(frozen=True, slots=True)
class Generation:
    """One answered request.

    Attributes:
        token_ids: the output, with the EOS token if it ended on one.
        finish_reason: "eos", "stop" (a stop string) or "length" (the token budget).
        num_forwards: target forwards, counting the prefill as one.
        num_prefill_tokens: tokens that the prefill gave: the first one, and with `exact=false` the
            accepted part of a draft behind the prompt.
        attempts: the forwards that verified a draft, in order.
        spans: the accepted draft tokens and where they were copied from.
        prefill_seconds: the request's own prefill, its first token included.
        decode_seconds: the request's share of its steps; a step's time is split evenly among the
            rows that took part, so that sums over requests are wall-clock time.
        latency_seconds: from the start of the prefill to the last token, the steps and prefills of
            the rows beside it included, but not what the caller does with finished answers.
        batch_size: rows that the engine decodes side by side.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    num_forwards: int
    num_prefill_tokens: int
    attempts: tuple[Attempt, ...]
    spans: tuple[Span, ...]
    prefill_seconds: float
    decode_seconds: float
    latency_seconds: float
    batch_size: int

    @property
    def seconds(self) -> float:
        """The request's whole share of the wall clock."""
        return self.prefill_seconds + self.decode_seconds
