"""One step of a batch: each row's last token and draft go in, the logits after them come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding import kernels, sequence
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.forward import Part, forward, key_extent, step_parents
from copyspec_eval.types import Draft

Rows = list[sequence.Sequence | None]
"""What occupies each row of the cache."""


class Prompt(NamedTuple):
    """A sequence whose prompt is to be read, and the draft behind it."""

    sequence: sequence.Sequence
    draft: Draft

    @property
    def num_left(self) -> int:
        """Tokens of the prompt that were not read before."""
        return len(self.sequence.prompt_ids) - self.sequence.num_reused_tokens


@dataclass(frozen=True, slots=True)
class StepLogits:
    """The logits of a step.

    Attributes:
        logits: `[tokens, vocabulary]`.
        starts: of each row, the place of those after its last token; after its draft's tokens, they
            follow there.
    """

    logits: torch.Tensor
    starts: Sequence[int]

    def parts(self, drafts: Sequence[Draft]) -> list[slice]:
        """Of each row, the place of those after its last token and its draft's tokens."""
        return [
            slice(start, start + 1 + len(draft.token_ids))
            for start, draft in zip(self.starts, drafts, strict=True)
        ]


class Steps:
    """The steps of an engine: how wide they are, and how many keys they attend to.

    In a batch, rows are fed unlike numbers of tokens where our kernels serve the model; else all as
    many as the longest. At a fixed width every row of every step has that many, and attends to
    equally many keys throughout.

    Args:
        model: within `engine_kernels` when steps are taken.
        num_draft_tokens: of the longest draft.
        fixed_width: tokens per row of every step; None for steps of any width.
        batch_size: rows side by side.

    Attributes:
        widest: the most tokens of a row.
        packs: whether rows may be of unlike widths.
        padding: the most tokens that follow a row's own in a step.
        fixes_extent: whether a sequence attends to equally many keys, masked or not, throughout.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        num_draft_tokens: int,
        fixed_width: int | None,
        batch_size: int,
    ) -> None:
        self._model = model
        self._batch_size = batch_size
        self.fixes_extent = fixed_width is not None
        self.widest = fixed_width or 1 + num_draft_tokens
        self.packs = batch_size > 1 and not fixed_width and kernels.serve(model)
        is_padded = fixed_width is not None or (batch_size > 1 and not self.packs)
        self.padding = self.widest - 1 if is_padded else 0

    def take(self, rows: Rows, drafts: Sequence[Draft], cache: RowCache) -> StepLogits:
        """Feed each row its last token and its draft."""
        lengths = [
            1 + len(draft.token_ids) if running else 0
            for running, draft in zip(rows, drafts, strict=True)
        ]
        width = self.common_width(lengths)
        lengths = [width or length for length in lengths]
        idle_token = next(running.output_ids[-1] for running in rows if running is not None)
        parts = [
            _part(row, running, drafts[row], lengths[row], idle_token)
            for row, running in enumerate(rows)
            if lengths[row]
        ]
        extent = None
        if self.fixes_extent:
            extent = max(running.extent for running in rows if running is not None)
        logits = forward(self._model, cache, parts, extent)
        return StepLogits(logits, [0, *accumulate(lengths)][:-1])

    def hold(self, *prompts: Prompt) -> bool:
        """Whether what is left of prompts to be read, together, is no more than a step."""
        lengths = [prompt.num_left + len(prompt.draft.token_ids) for prompt in prompts]
        return self.packs and max(lengths) <= self.widest

    def read(self, prompts: Sequence[Prompt], cache: RowCache) -> StepLogits:
        """Feed sequences, in their rows, what is left of their prompts, and their drafts."""
        parts: list[Part] = []
        for prompt in prompts:
            running, draft = prompt
            start = running.num_reused_tokens
            token_ids = [*running.prompt_ids[start:], *draft.token_ids]
            parents = None
            if draft.parents:
                parents = step_parents(draft, prompt.num_left, len(token_ids))
            parts.append(Part(running.row, start, token_ids, parents))
        begins = [0, *accumulate(len(part.token_ids) for part in parts)]
        logits = forward(self._model, cache, parts)
        lasts = [
            begin + prompt.num_left - 1 for begin, prompt in zip(begins, prompts, strict=False)
        ]
        return StepLogits(logits, lasts)

    def common_width(self, lengths: Sequence[int]) -> int:
        """Tokens that each row is fed; 0 if each is fed its own number.

        Args:
            lengths: of each row, how many tokens it has to be fed.
        """
        if self.fixes_extent:
            return self.widest
        return 0 if self.packs and len({*lengths}) > 1 else max(lengths)

    def extent_of(self, max_length: int) -> int:
        """Cache positions that a sequence of at most so many tokens may need, padding included."""
        return key_extent(max_length + self.padding)


def _part(
    row: int, running: sequence.Sequence | None, draft: Draft, width: int, idle_token: int
) -> Part:
    if running is None:
        return Part(row, 0, [idle_token] * width)
    parents = step_parents(draft, 1, width) if draft.parents else None
    return Part(row, running.length - 1, running.step_ids(draft, width), parents)
