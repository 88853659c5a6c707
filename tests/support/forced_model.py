"""A model of real size whose forward is really computed, and whose answers are then recorded ones.

So drafts are accepted as they were for the model that gave the answers, and a step costs what it
costs, without that model's weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

QWEN_05B: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "eos_token_id": None,
}


def forced_model(texts: Sequence[Sequence[int]], dtype: torch.dtype = torch.bfloat16) -> Any:
    """A random model of the shape of Qwen2.5-0.5B that always goes on as one of `texts` does.

    Which one shows when the prompt is read; one row at a time.
    """
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(Qwen2Config(**QWEN_05B), dtype=dtype).eval()
    real, current = model.forward, torch.tensor([0])

    def forward(input_ids: torch.Tensor, position_ids: torch.Tensor, **kwargs: Any) -> Any:
        nonlocal current
        if int(position_ids[0, 0]) == 0:
            read = input_ids[0].tolist()
            text = next(text for text in texts if list(text[: len(read)]) == read)
            current = torch.tensor([*text, 0])
        output = real(input_ids=input_ids, position_ids=position_ids, **kwargs)
        following = (position_ids[0, -output.logits.shape[1] :] + 1).clamp(max=len(current) - 1)
        output.logits.zero_().scatter_(2, current[following][None, :, None], 1.0)
        return output

    model.forward = forward
    return model
