"""A model of real size whose forward is really computed, and whose answers are then recorded ones.

So drafts are accepted as they were for the model that gave the answers, and a step costs what it
costs, without that model's weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from copyspec_eval.types import first_difference

QWEN_05B: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "eos_token_id": None,
}
"""The shape of Qwen2.5-0.5B."""


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward of one row.

    Attributes:
        position: of its first token.
        width: in tokens.
        started: by `perf_counter`.
        seconds: of the model.
        forcing_seconds: of the forcing behind it, which is no one's time.
    """

    position: int
    width: int
    started: float
    seconds: float
    forcing_seconds: float


class ForcedModel:
    """Makes a model go on as one of given texts does, whatever its weights say.

    Which text shows when the prompt is read; one row at a time.

    Args:
        model: changed for good.
        texts: each a prompt and its answer, in token ids.

    Attributes:
        forwards: since they were last cleared.
    """

    def __init__(self, model: Any, texts: Sequence[Sequence[int]]) -> None:
        self.forwards: list[Forward] = []
        self._texts = texts
        self._real = model.forward
        self._following = torch.tensor([0])
        model.forward = self._forward

    def _forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, **kwargs: Any) -> Any:
        first = int(position_ids[0, 0])
        if first == 0:
            self._begin(input_ids[0].tolist())
        started = perf_counter()
        output = self._real(input_ids=input_ids, position_ids=position_ids, **kwargs)
        if output.logits.is_cuda:
            torch.cuda.synchronize()
        ended = perf_counter()
        known = self._following.to(output.logits.device)
        after = (position_ids[0, -output.logits.shape[1] :] + 1).clamp(max=len(known) - 1)
        output.logits.zero_().scatter_(2, known[after][None, :, None], 1.0)
        times = started, ended - started, perf_counter() - ended
        self.forwards.append(Forward(first, input_ids.shape[1], *times))
        return output

    def _begin(self, read: list[int]) -> None:
        # A draft may stand behind the prompt, so they agree only so far.
        text = max(self._texts, key=lambda text: first_difference(read, text) or 0)
        self._following = torch.tensor([*text, 0])


def qwen_of_half_a_billion(dtype: torch.dtype, device: str = "cpu") -> Any:
    """Random weights in the shape of Qwen2.5-0.5B."""
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    return auto.from_config(Qwen2Config(**QWEN_05B), dtype=dtype).eval().to(device)
