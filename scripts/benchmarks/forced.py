"""A model that computes its forward, and whose logits are then forced to recorded answers.

So drafts are accepted as they were for the model that gave the answers, and a step costs what it
costs, without that model's weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from copyspec_eval.decoding.stopwatch import wait_for
from copyspec_eval.types import first_difference


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward of one row.

    Attributes:
        position: of its first token.
        width: in tokens.
        started: by `perf_counter`.
        seconds: of the model.
        forcing_seconds: of forcing its logits, which counts for nothing.
    """

    position: int
    width: int
    started: float
    seconds: float
    forcing_seconds: float


class ForcedModel:
    """Makes a model continue recorded prompts with their answers, whatever its weights compute.

    The prefill shows which answer is due; one row at a time.

    Args:
        model: changed for good.
        recorded: each a prompt and its answer, in token ids.

    Attributes:
        forwards: since they were last cleared.
    """

    def __init__(self, model: Any, recorded: Sequence[Sequence[int]]) -> None:
        self.forwards: list[Forward] = []
        self._recorded = recorded
        self._real = model.forward
        self._forced_ids = torch.tensor([0])
        model.forward = self._forward

    def _forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, **kwargs: Any) -> Any:
        first = int(position_ids[0, 0])
        if first == 0:
            self._begin(input_ids[0].tolist())
        started = perf_counter()
        output = self._real(input_ids=input_ids, position_ids=position_ids, **kwargs)
        wait_for(output.logits.device)
        ended = perf_counter()
        forced_ids = self._forced_ids.to(output.logits.device)
        after = (position_ids[0, -output.logits.shape[1] :] + 1).clamp(max=len(forced_ids) - 1)
        output.logits.zero_().scatter_(2, forced_ids[after][None, :, None], 1.0)
        times = started, ended - started, perf_counter() - ended
        self.forwards.append(Forward(first, input_ids.shape[1], *times))
        return output

    def _begin(self, input_ids: list[int]) -> None:
        # A draft may follow the prompt, so only the prompt has to agree.
        best = max(self._recorded, key=lambda ids: first_difference(input_ids, ids) or 0)
        self._forced_ids = torch.tensor([*best, 0])
