"""A text fed to a model in steps of any width, whose logits can be compared bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.forward import Part, forward, forward_packed
from copyspec_eval.decoding.serving import input_device

PREFILL_CHUNK = 256
"""Prompt tokens per forward of a prefill: bounds its mask, and never depends on a draft."""

KEY_BLOCK = 512
"""Keys that the attention takes at a time. A block that is masked as a whole adds nothing, but
where the last one ends, can change bits."""

_SHIFT = 7


class ForcedText:
    """Rows of a batch, each with its own part of a text and its own context length in the cache.

    Used within `serving.served`. Reading overwrites what was read before, as a step overwrites the
    rejected drafts of an earlier one.

    Attributes:
        context: as below.
        capacity: keys that there is room for: a block more than reading needs.

    Args:
        model: the model.
        token_ids: the text; it is repeated if it is short.
        batch_size: rows; row r begins `7 r` tokens later and has r tokens less in front.
        context: tokens in front of row 0's first position.
        length: positions behind it that can be read, with those that a wide step goes beyond.
        first_row: the number r of the first row.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        token_ids: Sequence[int],
        batch_size: int,
        context: int,
        length: int,
        first_row: int = 0,
    ) -> None:
        self._model = model
        self._token_ids, self.context, self._length = token_ids, context, length
        device = input_device(model)
        numbers = range(first_row, first_row + batch_size)
        whole = list(islice(cycle(token_ids), context + length + _SHIFT * numbers[-1]))
        contexts = [max(1, context - number) for number in numbers]
        rows = [
            whole[_SHIFT * number :][: before + length]
            for number, before in zip(numbers, contexts, strict=True)
        ]
        self._in_front = contexts[-1]
        self._ids = torch.tensor(
            [row[before - self._in_front :] for row, before in zip(rows, contexts, strict=True)],
            device=device,
        )
        self._starts = torch.tensor(contexts, device=device)[:, None]
        self.capacity = _blocks(context + 2 * length) + KEY_BLOCK
        self._cache = RowCache(batch_size, self.capacity)
        for row, before in enumerate(contexts):
            prompt = torch.tensor([rows[row][:before]], device=device)
            for start in range(0, before, PREFILL_CHUNK):
                end = min(before, start + PREFILL_CHUNK)
                forward(model, self._cache, row, prompt[:, start:end], start, end, logits_to_keep=1)

    def row(self, number: int) -> ForcedText:
        """One of the rows as a batch of one."""
        return ForcedText(
            self._model, self._token_ids, 1, self.context, self._length, first_row=number
        )

    def read(
        self, width: int, count: int, first: int = 0, extent: int | None = None
    ) -> torch.Tensor:
        """Logits after `count` positions from `first` on, read in steps of `width` tokens.

        What a last step holds beyond them is junk.

        Args:
            width: tokens of a step.
            count: positions.
            first: counted from the end of the context; may be negative.
            extent: keys attended to, masked or not; if None, the blocks that hold the positions.

        Returns:
            `[rows, count, vocabulary]` in the model's dtype.
        """
        extent = extent or _blocks(self.context + first + count + width)
        parts = []
        for start in range(first, first + count, width):
            end = min(start + width, first + count)
            ids = self._ids[:, :1].repeat(1, width)
            ids[:, : end - start] = self._ids[:, self._in_front + start : self._in_front + end]
            step = forward(self._model, self._cache, 0, ids, self._starts + start, extent)
            parts.append(step[:, : end - start])
        return torch.cat(parts, dim=1)

    def read_packed(
        self, lengths: Sequence[int], widths: Sequence[int], num_tokens: int, first: int = 0
    ) -> list[torch.Tensor]:
        """Logits after positions from `first` on, read in one step of unlike numbers per row.

        Args:
            lengths: how many tokens of each row are read.
            first: counted from the end of the context.
            widths: of the attention, as for `forward_packed`.
            num_tokens: of the step, padding included.

        Returns:
            of each row `[its length, vocabulary]`.
        """
        starts = [int(start) + first for start in self._starts[:, 0]]
        ids = self._ids[:, self._in_front + first :].tolist()
        parts = [Part(row, starts[row], ids[row][:length]) for row, length in enumerate(lengths)]
        extent = _blocks(self.context + first + max(lengths))
        logits = forward_packed(self._model, self._cache, parts, widths, num_tokens, extent)
        return list(torch.split(logits[: sum(lengths)], list(lengths)))


def _blocks(length: int) -> int:
    return -(-length // KEY_BLOCK) * KEY_BLOCK
