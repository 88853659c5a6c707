"""The model's own choice of the next token: argmax or a draw, after the logits processors."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from transformers import LogitsProcessorList

_BISECTIONS = 40


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
        self._seed = seed
        self._generator = torch.Generator() if do_sample else None
        self._foreseen: deque[float] = deque()
        self.restart()

    @property
    def is_argmax(self) -> bool:
        """Whether the choice is the argmax of the bare logits."""
        return self._generator is None and not self._processors

    def restart(self, position: int = 0) -> None:
        """Be ready to choose output token `position`, as if those before had just been chosen."""
        self._foreseen.clear()
        if self._generator is not None:
            self._generator.manual_seed(self._seed)
            for _ in range(position):
                self._uniform()

    def choose(self, prefix_ids: Sequence[int], logits: torch.Tensor) -> int:
        """The token after `prefix_ids` (prompt and output), given its `[vocabulary]` logits."""
        return self._pick(prefix_ids, logits, self._uniform())

    def foresee(self, prefix_ids: Sequence[int], logits: torch.Tensor, ahead: int) -> int:
        """What would be chosen from `logits`, another model's, `ahead` tokens after the next.

        Takes no random number: the choice itself will be made with the same one.
        """
        while self._generator is not None and len(self._foreseen) <= ahead:
            self._foreseen.append(self._draw(self._generator))
        uniform = self._foreseen[ahead] if self._generator is not None else None
        return self._pick(prefix_ids, logits, uniform)

    def margin(self, prefix_ids: Sequence[int], logits: torch.Tensor, token: int) -> float | None:
        """By how much `logits` would have to change, against each other, for `token` to be chosen.

        Decoding greedily without processors it is the largest logit less that of `token`. Otherwise
        it is found by bisection: raise the logit of `token` (when sampling, the logits of all
        tokens on its side of the cumulative distribution) until the choice turns. If rounding moves
        no logit by more than e, it can turn only choices whose margin is at most 2 e.

        Takes the random number of the next choice, like `choose`. None if no change turns it.
        """
        uniform = self._uniform()
        logits = logits.float()
        chosen = self._pick(prefix_ids, logits, uniform)
        if chosen == token:
            return 0.0
        order = torch.arange(len(logits), device=logits.device)
        if uniform is None:
            raised = order == token
        else:
            raised = order <= token if token < chosen else order >= token

        def turns(change: float) -> bool:
            return bool(raised[self._pick(prefix_ids, logits + change * raised, uniform)])

        # More than any penalty or draw can ask for.
        enough, too_little = 4.0 * float(logits.max() - logits.min()) + 100.0, 0.0
        if not turns(enough):
            return None
        for _ in range(_BISECTIONS):
            middle = (enough + too_little) / 2
            enough, too_little = (middle, too_little) if turns(middle) else (enough, middle)
        return enough

    def _uniform(self) -> float | None:
        if self._generator is None:
            return None
        return self._foreseen.popleft() if self._foreseen else self._draw(self._generator)

    @staticmethod
    def _draw(generator: torch.Generator) -> float:
        return float(torch.rand((), generator=generator, dtype=torch.float64))

    def _pick(self, prefix_ids: Sequence[int], logits: torch.Tensor, uniform: float | None) -> int:
        prefix = torch.tensor([prefix_ids], dtype=torch.long, device=logits.device)
        scores: torch.Tensor = self._processors(prefix, logits[None].float())[0]  # type: ignore[arg-type]
        if uniform is None:
            return int(scores.argmax())
        cumulative = torch.softmax(scores, dim=-1, dtype=torch.float64).cumsum(-1)
        # Scaled by the total, so that rounding can never pass the last possible token.
        return int(torch.searchsorted(cumulative, uniform * cumulative[-1:], right=True))


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
