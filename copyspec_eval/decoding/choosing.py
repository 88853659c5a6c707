"""The model's own choice of the next token: argmax or a draw, after the logits processors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import LogitsProcessorList


class TokenChooser:
    """Chooses as `model.generate` does: float32 logits, the processors, then argmax or a draw.

    A draw takes one uniform number per emitted token from the request's own generator and inverts
    the cumulative distribution. So the same request and seed give the same tokens whatever was
    drafted and whoever shares the batch, as long as the logits are the same.

    Args:
        processors: transformers' logits processors (and warpers) of this request.
        do_sample: draw instead of taking the argmax.
        seed: of this request's random numbers.
    """

    def __init__(self, processors: LogitsProcessorList, do_sample: bool, seed: int = 0) -> None:
        self._processors = processors
        self._generator = torch.Generator().manual_seed(seed) if do_sample else None

    @property
    def is_argmax(self) -> bool:
        """Whether the choice is the argmax of the bare logits."""
        return self._generator is None and not self._processors

    def choose(self, prefix_ids: Sequence[int], logits: torch.Tensor) -> int:
        """The token after `prefix_ids` (prompt and output), given its `[vocabulary]` logits."""
        prefix = torch.tensor([prefix_ids], dtype=torch.long, device=logits.device)
        scores: torch.Tensor = self._processors(prefix, logits[None].float())[0]  # type: ignore[arg-type]
        if self._generator is None:
            return int(scores.argmax())
        return self._draw(scores, self._generator)

    def _draw(self, scores: torch.Tensor, generator: torch.Generator) -> int:
        cumulative = torch.softmax(scores, dim=-1, dtype=torch.float64).cumsum(-1)
        # Scaled by the total, so that rounding can never pass the last possible token.
        drawn = torch.rand((), generator=generator, dtype=torch.float64).to(cumulative.device)
        return int(torch.searchsorted(cumulative, drawn * cumulative[-1], right=True))


def argmax_tokens(logits: torch.Tensor) -> list[list[int]]:
    """Argmax of `[rows, width, vocabulary]` logits, the first one of equals, on the host at once.

    transformers compares float32 logits, so float64 ones are rounded first; widening the narrower
    types changes nothing.
    """
    if logits.device.type == "cpu":
        # NumPy's argmax is many times faster here than torch's, of bfloat16 above all.
        on_host: list[list[int]] = logits.float().numpy().argmax(-1).tolist()
        return on_host
    if logits.dtype == torch.float64:
        logits = logits.float()
    tokens: list[list[int]] = logits.argmax(-1).tolist()
    return tokens
