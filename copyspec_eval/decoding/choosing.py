"""The model's own choice of the next token: argmax or a draw, after the logits processors."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

import torch
from transformers import LogitsProcessorList

_BISECTIONS = 50


class TokenChooser:
    """Chooses as `model.generate` does: float32 logits, the processors, then argmax or a draw.

    A draw is the Gumbel-max rule: every token of the vocabulary gets a random number that depends
    on the request's seed and the position alone, and the largest sum of score and number wins,
    which is each token as often as its softmax says. So the same request and seed give the same
    tokens whatever was drafted and whoever shares the batch, as long as the logits are the same.
    Two models that use the same numbers choose the same token with a probability of at least
    (1 - d) / (1 + d), where d is the total variation between them (arXiv 2408.07978).

    Args:
        processors: transformers' logits processors (and warpers) of this request.
        do_sample: draw instead of taking the argmax.
        seed: of this request's random numbers.
    """

    def __init__(self, processors: LogitsProcessorList, do_sample: bool, seed: int = 0) -> None:
        self._processors = processors
        self._seed = seed
        self._generator = torch.Generator() if do_sample else None
        self._drawn: dict[int, torch.Tensor] = {}
        self._position = 0

    @property
    def is_argmax(self) -> bool:
        """Whether the choice is the argmax of the bare logits."""
        return self._generator is None and not self._processors

    def restart(self, position: int = 0) -> None:
        """Be ready to choose output token `position`, as if those before had just been chosen."""
        self._drawn.clear()
        self._position = position

    def choose(self, prefix_ids: Sequence[int], logits: torch.Tensor) -> int:
        """The token after `prefix_ids` (prompt and output), given its `[vocabulary]` logits."""
        token = self._pick(prefix_ids, logits, self._position)
        self._advance()
        return token

    def foresee(self, prefix_ids: Sequence[int], logits: torch.Tensor, ahead: int) -> int:
        """The token chosen from `logits`, another model's, `ahead` tokens after the next.

        The choice itself will use the same random numbers.
        """
        return self._pick(prefix_ids, logits, self._position + ahead)

    def margin(self, prefix_ids: Sequence[int], logits: torch.Tensor, token: int) -> float | None:
        """By how much `logits` would have to change, against each other, for `token` to be chosen.

        Decoding greedily without processors it is the largest logit less that of `token`. Otherwise
        it is found by bisection: raise the logit of `token` until it is chosen, or lower that of
        the token that would be (at the edge of a top-k or top-p, that can take less). If rounding
        moves no logit by more than e, it can change only choices whose margin is at most 2 e.

        Counts as the next choice, like `choose`. None if no change leads to `token`.
        """
        logits = logits.float()
        tokens, position = torch.arange(len(logits), device=logits.device), self._position
        # More than any penalty, temperature or draw can ask for.
        enough = 4.0 * float(logits.max() - logits.min()) + 10_000.0

        def least(direction: torch.Tensor) -> float:
            def is_chosen(change: float) -> bool:
                return self._pick(prefix_ids, logits + change * direction, position) == token

            return _least(is_chosen, enough) if is_chosen(enough) else math.inf

        chosen = self._pick(prefix_ids, logits, position)
        margin = 0.0
        if chosen != token:
            margin = min(least((tokens == token).float()), least(-(tokens == chosen).float()))
        self._advance()
        return None if math.isinf(margin) else margin

    def _advance(self) -> None:
        self._drawn.pop(self._position, None)
        self._position += 1

    def _pick(self, prefix_ids: Sequence[int], logits: torch.Tensor, position: int) -> int:
        prefix = torch.tensor([prefix_ids], dtype=torch.long, device=logits.device)
        scores: torch.Tensor = self._processors(prefix, logits[None].float())[0]  # type: ignore[arg-type]
        if self._generator is None:
            return int(scores.argmax())
        # On the host: not every device has float64, and the sums are the same bits for all of them.
        return gumbel_max(scores.cpu().double(), self._uniforms(position, len(scores)))

    def _uniforms(self, position: int, count: int) -> torch.Tensor:
        """Numbers of the first `count` tokens; models of different vocabularies share those."""
        drawn = self._drawn.get(position)
        if drawn is None or len(drawn) < count:
            assert self._generator is not None
            seed = hashlib.blake2b(f"{self._seed} {position}".encode(), digest_size=8).digest()
            self._generator.manual_seed(int.from_bytes(seed, "little"))
            drawn = torch.rand(count, generator=self._generator, dtype=torch.float64)
            self._drawn[position] = drawn
        return drawn[:count]


def _least(suffices: Callable[[float], bool], enough: float) -> float:
    """The smallest change that suffices, between 0 and one that is `enough`."""
    too_little = 0.0
    for _ in range(_BISECTIONS):
        middle = (enough + too_little) / 2
        enough, too_little = (middle, too_little) if suffices(middle) else (enough, middle)
    return enough


def gumbel_max(scores: torch.Tensor, uniforms: torch.Tensor) -> int:
    """Argmax of score - log(-log(uniform)), all `[vocabulary]`, float64.

    The logarithms are taken only where the sum can be the largest.
    """
    best = scores.argmax()
    at_least = scores[best] + _gumbel(uniforms[best])
    candidates = (scores + _gumbel(uniforms.max()) >= at_least).nonzero()[:, 0]
    sums = scores[candidates] + _gumbel(uniforms[candidates])
    return int(candidates[sums.argmax()])


def _gumbel(uniforms: torch.Tensor) -> torch.Tensor:
    return -(-uniforms.log()).log()


def argmax_tokens(logits: torch.Tensor) -> list[list[int]]:
    """Argmax of `[rows, width, vocabulary]` logits, the first one of equals, on the host at once.

    transformers compares float32 logits, so float64 ones are rounded first; widening the narrower
    types changes nothing.
    """
    if logits.device.type == "cpu":
        # NumPy's argmax is many times faster here than torch's, of bfloat16 above all. One position
        # at a time: in float32, those of a long draft would take more memory than all else.
        return [[int(position.float().numpy().argmax()) for position in row] for row in logits]
    if logits.dtype == torch.float64:
        logits = logits.float()
    tokens: list[list[int]] = logits.argmax(-1).tolist()
    return tokens
