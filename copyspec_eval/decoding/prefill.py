"""Reads prompts into the cache, in chunks that do not depend on what was read before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.forced_text import PREFILL_CHUNK
from copyspec_eval.decoding.forward import forward, step_parents
from copyspec_eval.decoding.serving import input_device
from copyspec_eval.decoding.widths import exact_extent
from copyspec_eval.types import Draft, ExactSteps

_REUSED_BLOCK = 16
"""Tokens that are kept together, where chunks may begin anywhere."""
_READ_AGAIN = 32
"""Tokens that are read again rather than that a chunk is added: reading the weights for it takes
about as long."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """How prompts are read, and from where on if keys and values of their beginning are there.

    In exact mode, if a prefill's chunks can be steps whose bits are those of plain decoding, keys
    and values depend on the tokens before them alone. So they can be those of any earlier prompt or
    answer. Otherwise chunks begin at multiples of `PREFILL_CHUNK`, and only whole ones that a
    prefill has read have the same bits. Without exact mode bits do not matter.

    Attributes:
        exact: the steps of exact mode, None without it.
    """

    exact: ExactSteps | None

    @property
    def resumes_answers(self) -> bool:
        """Whether it may begin behind an answer, which was read in steps."""
        return self.exact is None or bool(self.exact.prefill_widths)

    @property
    def block_length(self) -> int:
        """Tokens from one place to the next where it may begin."""
        return _REUSED_BLOCK if self.resumes_answers else PREFILL_CHUNK

    @torch.inference_mode()
    def read(
        self,
        model: PreTrainedModel,
        cache: RowCache,
        row: int,
        prompt_ids: Sequence[int],
        draft: Draft | None = None,
        start: int = 0,
    ) -> torch.Tensor:
        """Put a prompt into a row of the cache, and a draft behind it.

        Args:
            model: a model within `served`.
            cache: where keys and values go.
            row: of the cache.
            prompt_ids: the whole prompt.
            draft: verified by the prompt's last chunk; exact mode has none.
            start: tokens whose keys and values are in the row; fewer than the prompt's, and a
                multiple of `block_length`.

        Returns:
            logits `[1, 1 + draft, vocabulary]`: after the prompt, and after each draft token.
        """
        draft = draft or Draft()
        *chunks, (last, _) = self._chunks(start, len(prompt_ids))
        # Of a prompt shorter than any exact step.
        num_behind = max(0, self._narrowest - len(prompt_ids))
        ids = torch.tensor(
            [[*prompt_ids, *draft.token_ids, *([0] * num_behind)]], device=input_device(model)
        )
        for begin, end in chunks:
            forward(
                model, cache, row, ids[:, begin:end], begin, self._extent(end), logits_to_keep=1
            )
        width = ids.shape[1] - last
        parents = [step_parents(draft, len(prompt_ids) - last, width)] if draft.parents else None
        logits = forward(
            model,
            cache,
            row,
            ids[:, last:],
            last,
            self._extent(ids.shape[1]),
            logits_to_keep=1 + len(draft.token_ids) + num_behind,
            parents=parents,
        )
        return logits[:, : 1 + len(draft.token_ids)]

    @property
    def _widths(self) -> tuple[int, ...]:
        return self.exact.prefill_widths if self.exact else ()

    @property
    def _narrowest(self) -> int:
        return min(self._widths, default=0)

    def _chunks(self, start: int, end: int) -> list[tuple[int, int]]:
        widths = [width for width in self._widths if width <= end]
        return exact_chunks(start, end, widths) if widths else grid_chunks(start, end)

    def _extent(self, length: int) -> int:
        if self._widths:
            assert self.exact is not None
            return exact_extent(length, self.exact.block_lengths)
        return length


def grid_chunks(start: int, end: int) -> list[tuple[int, int]]:
    """Chunks of at most `PREFILL_CHUNK` tokens from `start` to `end`.

    >>> grid_chunks(256, 700)
    [(256, 512), (512, 700)]
    """
    begins = range(start, end, PREFILL_CHUNK)
    return [(begin, min(begin + PREFILL_CHUNK, end)) for begin in begins]


def exact_chunks(start: int, end: int, widths: Sequence[int]) -> list[tuple[int, int]]:
    """Chunks of these widths, ascending, from `start` to `end`, which the narrowest does not pass.

    The last one may begin among tokens that were read before: their bits stay the same.

    >>> exact_chunks(0, 700, (16, 32, 64, 128, 256))
    [(0, 256), (256, 512), (512, 640), (636, 700)]
    >>> exact_chunks(0, 740, (16, 32, 64, 128, 256))
    [(0, 256), (256, 512), (484, 740)]
    """
    chunks: list[tuple[int, int]] = []
    while start < end:
        rest = end - start
        covering = min((width for width in widths if width >= rest), default=0)
        within = max((width for width in widths if width <= rest), default=0)
        if covering and (not within or covering - rest <= _READ_AGAIN):
            return [*chunks, (end - covering, end)]
        chunks.append((start, start + within))
        start += within
    return chunks
