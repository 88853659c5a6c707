"""Models with random weights: steps that cost what real ones cost, without a checkpoint."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

Shape = dict[str, Any]
"""Arguments of `Qwen2Config`."""


def _shape(
    vocabulary: int, hidden: int, intermediate: int, layers: int, heads: int, key_heads: int = 2
) -> Shape:
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "eos_token_id": None,
    }


QWEN_05B = _shape(151936, 896, 4864, 24, 14) | {"tie_word_embeddings": True}
"""Qwen2.5-0.5B."""
QWEN_7B = _shape(152064, 3584, 18944, 28, 28, 4)
"""Qwen2.5-7B."""
MEDIUM = _shape(32000, 1024, 2816, 4, 8)
"""As wide as a small real model, with few layers."""
SMALL = _shape(512, 128, 352, 2, 8)
"""For trying a script on a CPU."""


def random_model(shape: Shape, dtype: torch.dtype, device: str = "cpu") -> Any:
    """A Qwen2 model of `shape`; the same weights each time on the same kind of device."""
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    with torch.device(device):
        return auto.from_config(Qwen2Config(**shape), dtype=dtype).eval()
