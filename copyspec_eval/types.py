"""The vocabulary: plain values that the layers above exchange. Standard library only."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from copyspec_eval.errors import OptionError

FinishReason = Literal["eos", "stop", "length"]  # by a stop string, and by the token budget

Agreement = Literal["identical", "near_tie", "diverged"]
"""How an answer compares with the baseline's: the same tokens, a first difference that rounding
explains, or one that it does not."""

DraftSource = Literal["context", "store", "earlier", "model", "unknown"]
"""Where draft tokens come from: copied from prompt and output, from an earlier answer of the run,
or from an answer of an earlier run; proposed by a draft model; or by a server that does not say."""

COPIED: tuple[DraftSource, ...] = ("context", "store", "earlier")  # those that are copies


class CopyOrigin(IntEnum):
    """Positions of draft tokens that are not in prompt + output, by their `DraftSource`."""

    STORE = -1
    EARLIER = -2


CacheKind = Literal["copyspec", "model"]
"""Whose cache and attention decode: the engine's or the model's."""

EXACT_MEANS = {
    "invariant": "the bits of plain one-token decoding",
    "fixed width": "the same bits for every drafter, and for plain decoding in steps of that width",
    "fixed width, captured": "the same bits for every drafter, and for plain decoding in steps of "
    "that width, each a CUDA graph",
}
"""What exact mode gives, by its name in a run's settings."""

FIXED_WIDTHS = (8, 16, 32)  # step widths in tokens, of fixed width

PAPER_GAMMA, PAPER_DRAFT_TOKENS, PAPER_DELTA = 3, 10, 5  # the paper's usual ones, in tokens


@dataclass(frozen=True, slots=True)
class ExactMode:
    """How a token's bits are independent of the draft: each alone, or steps of a padded width.

    The latter can be captured as a CUDA graph.
    """

    width: int | None = None
    steps: Literal["eager", "captured"] = "eager"

    @property
    def name(self) -> str:
        if not self.width:
            return "invariant"
        return "fixed width" if self.steps == "eager" else f"fixed width, {self.steps}"

    @property
    def num_draft_tokens(self) -> int | None:
        """The longest draft that a step holds; None if there is no limit."""
        return self.width - 1 if self.width else None


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """How to draft; OptionError for a value of the wrong type, or a number that is too low.

    >>> DraftOptions("suffix", store=("runs/base", "runs/old/turns.jsonl"), tree=True).label
    'suffix + store=base:old + tree'
    >>> DraftOptions("none", draft_model="Qwen/Qwen2.5-0.5B-Instruct", delta=3).label
    'none + draft_model=Qwen2.5-0.5B-Instruct + delta=3'
    """

    drafter: str = "copyspec"  # in the registry of `copyspec_eval.drafters`
    gamma: int = PAPER_GAMMA  # the paper's γ: trailing tokens that must have occurred; `copyspec`
    # The most tokens of a draft (the paper copies 10); None for the drafter's default; 0, only for
    # `copyspec`, looks for what to copy and copies nothing.
    num_draft_tokens: int | None = None
    # Whether to copy from the run's earlier answers; or folders and files of earlier runs, too.
    store: bool | tuple[str, ...] = False
    tree: bool = False  # several continuations at once
    draft_model: str | None = None  # name or folder; drafts where the drafter does not
    delta: int = PAPER_DELTA  # the paper's δ: how many tokens the draft model proposes at a time

    def __post_init__(self) -> None:
        usual = {"gamma": PAPER_GAMMA, "num_draft_tokens": PAPER_DRAFT_TOKENS, "delta": PAPER_DELTA}
        for name, example in usual.items():
            value = getattr(self, name)
            if name == "num_draft_tokens" and value is None:
                continue
            least = 0 if (name, self.drafter) == ("num_draft_tokens", "copyspec") else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                wanted = f"an integer of at least {least} (usual: {example})"
                raise OptionError(f"{name} must be {wanted}, got {value!r}")
        kinds: dict[str, tuple[Any, str]] = {
            "drafter": (str, "the name of a drafter"),
            "draft_model": (str | None, "the name of a model"),
            "tree": (bool, "true or false"),
            "store": (bool | tuple, "true, false or the folder of an earlier run"),
        }
        for name, (kind, wanted) in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise OptionError(f"{name} must be {wanted}, got {getattr(self, name)!r}")

    @property
    def store_paths(self) -> tuple[str, ...]:
        return self.store if isinstance(self.store, tuple) else ()

    @property
    def label(self) -> str:
        """The drafter and its switches: "suffix", "suffix + store + tree", …."""
        store = "=".join(filter(None, ("store", ":".join(map(_run_name, self.store_paths)))))
        drafting = f"draft_model={_run_name(self.draft_model or '')} + delta={self.delta}"
        switches = {store: self.store, "tree": self.tree, drafting: self.draft_model}
        return " + ".join([self.drafter, *(name for name in switches if switches[name])])


def _run_name(path: str) -> str:
    """A run's name without its place on this machine; rows are named after their folder."""
    place = Path(path).resolve()
    return place.parent.name if place.match("turns*.jsonl") else place.name


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that a drafter proposes, a chain or a tree of continuations; empty for no proposal."""

    token_ids: tuple[int, ...] = ()  # at most as many as were asked for
    # Index in prompt + output of the first copied token; a `CopyOrigin` if it is not there, -1 if
    # it is not copied.
    position: int = -1
    source: DraftSource = "context"  # for a tree, that of its first token
    # For a tree, the index of the token before each token, always lower than its own; -1 for none.
    parents: tuple[int, ...] | None = None
    positions: tuple[int, ...] = ()  # for a tree, `position` of each token
    # The drafter's estimates that each token and those before it are accepted; they never rise
    # along a branch. Empty if it makes none.
    probabilities: tuple[float, ...] = ()

    def cut(self, most: int) -> "Draft":
        """The first `most` tokens of it, or all; of a tree, parents come before their children.

        >>> Draft((7, 8, 9), position=4).cut(2)
        Draft(token_ids=(7, 8), position=4, source='context', parents=None, ...)
        """
        if len(self.token_ids) <= most:
            return self
        return replace(
            self,
            token_ids=self.token_ids[:most],
            parents=None if self.parents is None else self.parents[:most],
            positions=self.positions[:most],
            probabilities=self.probabilities[:most],
        )

    def source_of(self, node: int) -> DraftSource:
        """Where draft token `node` comes from; the branches of a tree can differ.

        >>> draft = Draft((7, 8, 9), parents=(-1, -1, 1), position=4, positions=(4, -1, -2))
        >>> draft.source_of(0), draft.source_of(1), draft.source_of(2)
        ('context', 'store', 'earlier')
        """
        return self.source if self.parents is None else source_at(self.positions[node])


def source_at(position: int) -> DraftSource:
    """Where a token at that `Draft.position` comes from."""
    name = "context" if position >= 0 else CopyOrigin(position).name.lower()
    return cast("DraftSource", name)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification made of a draft."""

    num_accepted: int  # tokens that the model would have chosen, up to the first it would not
    next_token: int  # the model's token after those; a step emits `num_accepted + 1` tokens
    path: tuple[int, ...] | None = None  # indices of the accepted tokens; None for a chain


class Attempt(NamedTuple):
    """A target forward that verified a draft; a tree's source is its first copied token's."""

    num_drafted: int
    num_accepted: int
    source: DraftSource = "context"


class Span(NamedTuple):
    """Output tokens that were copied from place `source` of prompt + output, or a `CopyOrigin`."""

    start: int
    length: int
    source: int


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Totals of one source's drafts in an answer; an attempt is of its first token's source."""

    num_attempts: int = 0
    num_drafted: int = 0
    num_accepted: int = 0


@dataclass(frozen=True, slots=True)
class TurnCounts:
    """What one answer took: the only declaration of these counts. None if unknown."""

    num_prompt_tokens: int | None = None
    num_reused_tokens: int | None = None  # those whose keys and values the prefix cache had
    num_tokens: int | None = None  # generated, including an EOS token
    num_looped_tokens: int | None = None  # see `loops`
    num_forwards: int | None = None  # of the target; the prefill counts as one
    # What the prefill gave: the first token, and with `exact=false` the accepted part of a draft
    # after the prompt.
    num_prefill_tokens: int | None = None
    drafts: dict[DraftSource, DraftCounts] | None = None  # empty if nothing was drafted
    # This answer's share of the wall clock: its prefill, and of each step an even part among the
    # rows, so that the sum over answers is wall-clock time.
    seconds: float | None = None
    prefill_seconds: float | None = None  # until the prefill's tokens were chosen
    decode_seconds: float | None = None  # the rest
    latency_seconds: float | None = None  # prefill to last token, with steps of other rows
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """One answered request."""

    token_ids: tuple[int, ...]  # with the EOS token if it ended on one
    counts: TurnCounts
    attempts: tuple[Attempt, ...]
    spans: tuple[Span, ...]
    batch_size: int  # rows that the engine decodes side by side


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
    """The first place where two answers to one prompt differ."""

    position: int  # of the token in the output, from 0
    token_id: int | None  # None where the answer has ended
    baseline_token_id: int | None
    # By how much the logits would have to change, against each other, for the model to choose
    # either token there; None where no change would do.
    margin: float | None
    noise: float  # the largest change of a logit by rounding alone that was measured around there

    @property
    def agreement(self) -> Agreement:
        """A near-tie if rounding can turn it: two logits then move apart by twice the noise."""
        near = self.margin is not None and self.margin <= 2 * self.noise
        return "near_tie" if near else "diverged"
