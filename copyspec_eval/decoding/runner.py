"""What the engine needs of a model and its cache: to read, to take steps, to take drafts back."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.steps import Prompt, Rows, StepLogits
from copyspec_eval.types import Draft, Verdict


class Runner(Protocol):
    """The forwards of a model over the rows of a batch, and the cache that they read and write.

    One forward is made by `read` and by `step` each, so that the engine can count them.

    Attributes:
        widest: the most tokens of a row in a step.
        packs: whether the rows of a step may be of unlike widths.
        padding: the most tokens that follow a row's own in a step.
        drafts_in_prefill: whether the forward that reads a prompt may carry a draft.
    """

    widest: int
    packs: bool
    padding: int
    drafts_in_prefill: bool

    def running(
        self, sequences: abc.Sequence[Sequence], beside: Iterable[Sequence]
    ) -> AbstractContextManager[None]:
        """Be ready for `sequences`, whose `extent` it sets; all else is called within.

        Args:
            sequences: to be answered.
            beside: those of other calls of the same run.
        """
        ...

    def load(self, sequence: Sequence) -> None:
        """Put what is kept of the beginning of a sequence's prompt into its row, if anything is."""
        ...

    def reads_together(self, prompts: abc.Sequence[Prompt]) -> bool:
        """Whether what is left of prompts can be read in one forward."""
        ...

    def read(self, prompts: abc.Sequence[Prompt]) -> StepLogits:
        """Put prompts, of which the row has what was loaded, into their sequences' rows.

        Args:
            prompts: one, or several that it `reads_together`.

        Returns:
            the logits after each prompt, and after each token of its draft.
        """
        ...

    def can_draft(self, sequence: Sequence) -> bool:
        """Whether a sequence's next step may carry a draft."""
        ...

    def step(self, rows: Rows, drafts: abc.Sequence[Draft]) -> StepLogits:
        """Feed each row what it has not read of its sequence, and its draft."""
        ...

    def accept(self, sequence: Sequence, start: int, draft: Draft, verdict: Verdict) -> None:
        """Take the rejected tokens of a draft back that began at position `start`."""
        ...

    def finish(self, sequence: Sequence) -> None:
        """The sequence is answered, and its row about to be free."""
        ...

    def copy_row(self, source: int, target: int) -> None:
        """Copy a row's contents to another, so that the rows in use stay the first ones."""
        ...

    def reread(self, sequence: Sequence, output_ids: abc.Sequence[int], keep: int) -> torch.Tensor:
        """As `Engine.read`."""
        ...
