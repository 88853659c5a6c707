"""One row of a batch as transformers decodes it: processors, criteria, random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.errors import RequestError
from copyspec_eval.types import FinishReason


class RowProcessor(LogitsProcessor):
    """A batch's processors, for the tokens of one row.

    Args:
        processors: as transformers applies them to the batch; some depend on the row's number.
        padding: `[rows, tokens]` before the row's prompt, which they read too.
        row: the row's number.
        keeps: whether to collect `logits` and `scores`, `[vocabulary]` of each choice.
    """

    def __init__(
        self, processors: LogitsProcessorList, padding: torch.Tensor, row: int, keeps: bool
    ) -> None:
        self._processors = processors
        self._padding = padding
        self._row = row
        self._keeps = keeps
        self.logits: list[torch.Tensor] = []
        self.scores: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores `[1, vocabulary]` after `input_ids`, `[1, tokens]`, of the row."""
        num_rows = len(self._padding)
        # Repeated, because a processor may write into its input.
        input_ids = torch.cat(
            [self._padding, input_ids.to(self._padding.device).expand(num_rows, -1)], dim=-1
        )
        processed = self._processors(input_ids, scores.repeat(num_rows, 1))  # type: ignore[arg-type]
        chosen: torch.Tensor = processed[self._row : self._row + 1]
        if self._keeps:
            self.logits.append(scores[0].clone())
            self.scores.append(chosen[0].clone())
        return chosen


class CriteriaRule(StopRule):
    """When a row's output ends, by transformers' criteria, which include a longest length.

    Args:
        criteria: of the batch.
        input_ids: `[rows, tokens]`, prompts with their padding.
        scores: `[vocabulary]` of each choice so far, a growing list; None if none are wanted.

    Raises:
        RequestError: nothing limits the length; or there are other criteria and several rows, where
            plain `generate` may continue a row that has ended until all have.
    """

    def __init__(
        self,
        criteria: StoppingCriteriaList,
        input_ids: torch.Tensor,
        scores: Sequence[torch.Tensor] | None = None,
    ) -> None:
        num_rows, num_tokens = input_ids.shape
        lengths = [each.max_length for each in criteria if type(each) is MaxLengthCriteria]
        others = {type(each) for each in criteria} - {MaxLengthCriteria, EosTokenCriteria}
        if not lengths:
            raise RequestError("nothing limits the answer's length; pass max_new_tokens")
        if others and num_rows > 1:
            raise RequestError(
                f"stopping_criteria other than length and EOS ({others.pop().__name__}) are for "
                f"one prompt; input_ids have {num_rows}"
            )
        eos_ids = {
            token
            for each in criteria
            if type(each) is EosTokenCriteria
            for token in each.eos_token_id.flatten().tolist()
        }
        # transformers looks at the length after a token.
        super().__init__(max(1, min(lengths) - num_tokens), eos_ids)
        self._criteria = criteria if others else None
        self._input_ids = input_ids
        self._scores = scores

    def reason(self, output_ids: Sequence[int]) -> FinishReason | None:
        if self._criteria is None:
            return super().reason(output_ids)
        output = self._input_ids.new_tensor([list(output_ids)])
        scores: Any = None
        if self._scores is not None:  # those of a verified draft can be there already
            scores = tuple(row[None] for row in self._scores[: len(output_ids)])
        ends = self._criteria(torch.cat([self._input_ids, output], -1), scores).any()
        return "stop" if ends else super().reason(output_ids)


class MultinomialReplay:
    """The random numbers that `torch.multinomial` would take from torch's generator, step by step.

    It draws a token as the argmax of probability / noise. The noise is exponentially distributed,
    `[rows, vocabulary]` a step, so rows at different steps still get their step's numbers.
    Source: `multinomial_out` in ATen's Distributions.cpp.
    """

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self._num_rows = num_rows
        self._device = device
        self._steps: list[dict[int, torch.Tensor]] = []
        self._states: list[torch.Tensor] = []
        is_cpu = device.type == "cpu"
        self._random: Any = torch if is_cpu else torch.get_device_module(device)
        self._place = () if is_cpu else (device,)

    def draw_for(self, row: int) -> Callable[[torch.Tensor, int], int]:
        """Draws a token of a row from its scores, `[vocabulary]`, at a position of the output."""

        def draw(scores: torch.Tensor, position: int) -> int:
            while len(self._steps) <= position:
                self._states.append(self._random.get_rng_state(*self._place))
                noise = torch.empty(self._num_rows, len(scores), device=self._device)
                self._steps.append(dict(enumerate(noise.exponential_(1))))
            probabilities = scores.to(self._device).softmax(-1)
            return int((probabilities / self._steps[position].pop(row)).argmax())

        return draw

    def rewind(self, num_steps: int) -> None:
        """Leave torch's generator as after that many steps, if there were more."""
        if num_steps < len(self._states):
            self._random.set_rng_state(self._states[num_steps], *self._place)
