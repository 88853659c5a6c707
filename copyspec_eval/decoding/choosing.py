"""The model's own choice of the next token: argmax or a draw, after the logits processors."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from numpy.random import Philox
from numpy.typing import NDArray
from transformers import LogitsProcessorList

_PARTS = 2**50
"""In which a change of the logits is counted."""
_ROUNDING = 1e-3
"""Far above the rounding of float32 scores in the hundreds."""


class TokenChooser:
    """Chooses as `model.generate` does: float32 logits, the processors, then argmax or a draw.

    A draw is the Gumbel-max rule: each token gets a random number that depends on the request's
    seed and the position alone, and the largest sum of score and number wins. So the same request,
    seed and logits give the same token, whatever was drafted and whoever shares the batch. Two
    models that use the same numbers agree with probability (1 - d) / (1 + d) at least, where d is
    the total variation between them (arXiv 2408.07978).

    Args:
        processors: transformers' logits processors (and warpers) of this request.
        do_sample: draw instead of taking the argmax.
        seed: of this request's random numbers.
        draw: another way to draw, from scores `[vocabulary]` float32 and a position in the output.
    """

    def __init__(
        self,
        processors: LogitsProcessorList,
        do_sample: bool,
        seed: int = 0,
        draw: Callable[[torch.Tensor, int], int] | None = None,
    ) -> None:
        self._processors = processors
        self._draw = draw or (self._gumbel_max if do_sample else None)
        self._seed = seed
        self._position = 0

    @property
    def is_argmax(self) -> bool:
        """Whether the choice is the argmax of the bare logits."""
        return self._draw is None and not self._processors

    def restart(self, position: int = 0) -> None:
        """Prepare to choose output token `position`, as if those before had just been chosen."""
        self._position = position

    def choose(self, prefix_ids: Sequence[int], logits: torch.Tensor) -> int:
        """The token after `prefix_ids` (prompt and output), given its `[vocabulary]` logits."""
        token = self._pick(prefix_ids, logits, self._position)
        self._position += 1
        return token

    def peek(self, prefix_ids: Sequence[int], logits: torch.Tensor, ahead: int) -> int:
        """The token chosen from another model's `logits`, `ahead` after the next; same numbers."""
        return self._pick(prefix_ids, logits, self._position + ahead)

    def margin(self, prefix_ids: Sequence[int], logits: torch.Tensor, token: int) -> float | None:
        """By how much `logits` would have to change, against each other, for `token` to be chosen.

        For an argmax, the largest logit less that of `token`. Otherwise found by bisection: raise
        the logit of `token`, or lower that of the chosen token. Rounding that moves no logit by
        more than e can change only choices with a margin of at most 2 e. Counts as the next choice,
        like `choose`. None if no change leads to `token`.
        """
        logits = logits.float()
        tokens, position = torch.arange(len(logits), device=logits.device), self._position
        # More than any penalty, temperature or draw can ask for.
        enough = 4.0 * float(logits.max() - logits.min()) + 10_000.0

        def least(direction: torch.Tensor) -> float:
            def is_chosen(part: int) -> bool:
                change = enough * part / _PARTS
                return self._pick(prefix_ids, logits + change * direction, position) == token

            if not is_chosen(_PARTS):
                return math.inf
            return enough * bisect_left(range(_PARTS), True, lo=1, key=is_chosen) / _PARTS

        chosen = self._pick(prefix_ids, logits, position)
        margin = 0.0
        if chosen != token:
            margin = min(least((tokens == token).float()), least(-(tokens == chosen).float()))
        self._position += 1
        return None if math.isinf(margin) else margin

    def _pick(self, prefix_ids: Sequence[int], logits: torch.Tensor, position: int) -> int:
        prefix: Any = torch.tensor([prefix_ids], dtype=torch.long, device=logits.device)
        scores = self._processors(prefix, logits[None].float())[0]
        if self._draw is None:
            return argmax_tokens(scores[None], [slice(1)])[0][0]
        return self._draw(scores, position)

    def _gumbel_max(self, scores: torch.Tensor, position: int) -> int:
        # On the host: not every device has float64, and the sums are the same bits for all of them.
        values = scores.cpu().numpy()
        # Positions are so far apart on the counter that their numbers never meet.
        source = Philox(key=self._seed % 2**64, counter=position << 64)
        bits = source.random_raw(len(values)) >> numpy.uint64(12)
        return gumbel_max(values, (bits + 0.5) * 2.0**-52)


def gumbel_max(scores: NDArray[numpy.float32], uniform: NDArray[numpy.float64]) -> int:
    """Argmax of `score - log(-log(uniform))`, both `[n]`; at least one score is finite.

    Logarithms are taken only of tokens that the largest random number could lift to the best sum
    known, that of the likeliest token.
    """
    likeliest = scores.argmax()
    least = float(scores[likeliest]) + _gumbel(uniform[likeliest]) - _gumbel(uniform.max())
    candidates = numpy.flatnonzero(scores >= least - _ROUNDING)
    sums = scores[candidates].astype(numpy.float64) + _gumbel(uniform[candidates])
    return int(candidates[sums.argmax()])


def _gumbel(uniform: Any) -> Any:
    return -numpy.log(-numpy.log(uniform))


def argmax_tokens(logits: torch.Tensor, parts: Sequence[slice]) -> list[list[int]]:
    """Argmax of `[n, vocabulary]` logits for each of `parts`, the first of equals.

    As in transformers, float64 logits are rounded to float32 first.
    """
    if logits.device.type == "cpu":
        # NumPy's argmax is many times faster here than torch's, of bfloat16 above all. One position
        # at a time: in float32, those of a long draft would take more memory than all else.
        return [[int(row.float().numpy().argmax()) for row in logits[part]] for part in parts]
    if logits.dtype == torch.float64:
        logits = logits.float()
    tokens: list[int] = logits.argmax(-1).tolist()
    return [tokens[part] for part in parts]


class StepLogits(NamedTuple):
    """A step's logits, `[tokens, vocabulary]`, and which of them choose each row's next tokens.

    `is_usual` says whether it took no longer than later steps of as many tokens.
    """

    logits: torch.Tensor
    parts: Sequence[slice]
    is_usual: bool = True
