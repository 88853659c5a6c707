"""Small random models of every architecture that the engine promises to serve."""

import copy
import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from asking import model_from
from packaging.version import Version
from transformers import CONFIG_MAPPING, AutoTokenizer

VOCABULARY = 120
CAPS = Version(transformers.__version__) >= Version("5.20")
"""Whether transformers' own attention reads Gemma 2's soft-capping; else the model is refused."""

_SHAPE: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48}
_SHAPE |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
_SHAPE |= {"max_position_embeddings": 256}
_GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
_GEMMA: dict[str, Any] = {
    "head_dim": 8,
    "sliding_window": 12,
    "query_pre_attn_scalar": 8,
    "tie_word_embeddings": False,  # else a random model says one token for ever
}
_EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 12}
_YARN_FREE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "mistral": {"sliding_window": 12},
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "phi3": {},
    "gpt2": {},
    "gpt_neox": {},
    "olmo2": {},
    "mixtral": _EXPERTS,
    "gpt_oss": {"head_dim": 8, **_EXPERTS, **_YARN_FREE},
}
"""Sliding windows are shorter than the prompts, so that they matter."""


def quick(*names: str) -> list[Any]:
    """Parameters of a test: all architectures, those that are not named among the slow tests."""
    others = [name for name in ARCHITECTURES if name not in names]
    return [*names, *(pytest.param(name, marks=pytest.mark.slow) for name in others)]


VARIED_FIRST = quick("qwen2", "gemma2", "gpt2", "mixtral")
"""Whole attention, windows, learned positions, experts."""

PROMPT_LENGTHS = (5, 33, 18, 12, 27)


def tiny_config(model_type: str, **changes: Any) -> Any:
    shape = _GPT2 | {"vocab_size": VOCABULARY} if model_type == "gpt2" else _SHAPE
    special = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
    config_class: Any = CONFIG_MAPPING[model_type]
    return config_class(**(shape | special | ARCHITECTURES[model_type] | changes))


@functools.cache
def tiny_model(model_type: str, dtype: torch.dtype = torch.float32) -> Any:
    return model_from(tiny_config(model_type), dtype=dtype)


@functools.cache
def larger_model(dtype: torch.dtype) -> Any:
    """Wide enough that matrix products are cut into blocks and shared among threads."""
    shape: dict[str, Any] = {"vocab_size": 2048, "hidden_size": 256, "intermediate_size": 704}
    shape |= {"num_attention_heads": 8, "max_position_embeddings": 512}
    return model_from(tiny_config("qwen2", **shape), None, dtype)


def with_twins(model: Any) -> Any:
    """A float32 model whose tokens come in near-equal pairs: a near-tie at every step."""
    model = copy.deepcopy(model)
    head = model.get_output_embeddings().weight.data
    head[1::2] = head[0::2]
    twins, columns = torch.arange(1, len(head), 2), torch.Generator().manual_seed(0)
    for _ in range(8):
        column = torch.randint(head.shape[1], (len(twins),), generator=columns)
        head[twins, column] *= 1 + 2**-22
    return model


def save_with_tokenizer(
    model_type: str, tokenizer: Path, folder: Path, change: Callable[[Any], Any] | None
) -> None:
    """Save a random model with flat logits, a real tokenizer and a repetition penalty of 1.1."""
    auto: Any = AutoTokenizer
    words = auto.from_pretrained(tokenizer)
    special = {"bos_token_id": None, "eos_token_id": words.eos_token_id, "vocab_size": 151936}
    special |= {"pad_token_id": words.pad_token_id, "max_position_embeddings": 4096}
    shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, **special}
    model = model_from(tiny_config(model_type, **shape, initializer_range=0.05), std=None)
    model = change(model) if change else model
    model.generation_config.repetition_penalty = 1.1
    model.save_pretrained(folder)
    words.save_pretrained(folder)


def prompts() -> list[tuple[int, ...]]:
    """Ragged prompts with repeats in them, so that copying has something to find."""
    source = random.Random(1)
    made = []
    for length in PROMPT_LENGTHS:
        half = [source.randrange(3, VOCABULARY) for _ in range((length + 1) // 2)]
        made.append(tuple((half + half)[:length]))
    return made


def skip_if_refused(model_type: str) -> None:
    if model_type == "gemma2" and not CAPS:
        pytest.skip("NOT TESTED with transformers before 5.20, which ignores soft-capping")
