"""Tiny random models of several architectures, their exact steps and draft models, made once."""

import copy
import functools
import random
from dataclasses import dataclass
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.exactness import mismatches
from copyspec_eval.types import CacheKind, ExactMode

VOCABULARY = 64
"""Small, so that what the models say repeats itself, and there is something to copy."""

LONGEST = 50
"""The most draft tokens."""

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,  # else some random models say one token forever
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 1024}
_WINDOW: dict[str, Any] = {"head_dim": 8, "sliding_window": 12}
_EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 12}
_PLAIN_ROPE: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"hidden_size": 48, "num_attention_heads": 6}),
    "qwen2": ("qwen2", {"hidden_size": 56, "num_attention_heads": 7, "num_key_value_heads": 1}),
    "wide": ("qwen2", {"hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8}),
    "mistral": ("mistral", _WINDOW | {"num_key_value_heads": 4}),
    "gemma2": ("gemma2", _WINDOW | {"query_pre_attn_scalar": 8}),
    "phi3": ("phi3", {}),
    "gpt2": ("gpt2", _GPT2),
    "gpt_neox": ("gpt_neox", {}),
    "mixtral": ("mixtral", _EXPERTS),
    "gpt_oss": ("gpt_oss", _EXPERTS | _PLAIN_ROPE | {"head_dim": 8}),
}
"""Model types and what is special: from one to seven query heads per key, windows shorter than the
prompts, caps, learned positions, experts, sinks; and one whose matrix products are cut into blocks.
"""

_LINEAR: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_BLOOM: dict[str, Any] = {"n_layer": 2, "n_head": 4}
_LINEAR_NEXT: dict[str, Any] = {
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}

OWN_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("bloom", _BLOOM),
    "falcon": ("falcon", {"alibi": False}),
    "gptj": ("gptj", _GPT2 | {"rotary_dim": 4}),
    "stablelm": ("stablelm", {}),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"]}),
    "olmo_hybrid": ("olmo_hybrid", _LINEAR),
    "qwen3_next": ("qwen3_next", _LINEAR | _LINEAR_NEXT),
}
"""Model types that are served by their own attention and cache, the last two recurrent; in float64,
or a tie that rounding turns would be as likely as a defect."""

LIKENESSES = {"same": 0, "noisy": 0, "of fewer tokens": -5, "of more tokens": 5}
"""Draft models, and how many more tokens than the target they know: the target itself, its weights
changed by 5%, and other models. (Models of one tokenizer can be padded to other sizes.)"""


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model.

    Attributes:
        kind: one of `KINDS` or `OWN_KINDS`.
        dtype: name of a torch dtype.
        has_twins: whether its tokens come in near-equal pairs, so that other bits soon give other
            tokens.
    """

    kind: str
    dtype: str
    has_twins: bool

    @property
    def cache(self) -> CacheKind:
        """Whose cache serves it."""
        return "model" if self.kind in OWN_KINDS else "copyspec"


ALL_MODELS = tuple(ModelName(kind, "float64", has_twins=False) for kind in OWN_KINDS) + tuple(
    ModelName(kind, dtype, has_twins=(row + column) % 2 == 0)
    for row, kind in enumerate(KINDS)
    for column, dtype in enumerate(("float32", "bfloat16", "float16"))
    if (kind, dtype) != ("wide", "float16")  # too slow on a CPU
)


@functools.cache
def model_of(name: ModelName) -> Any:
    """The model, the same weights each time."""
    model = _random_model(name.kind, name.dtype)
    return _with_twins(model) if name.has_twins else model


@functools.cache
def draft_model_of(name: ModelName, likeness: str) -> Any:
    """A model that drafts for `name`, one of `LIKENESSES`."""
    if likeness == "same":
        return model_of(name)
    if LIKENESSES[likeness]:
        return _random_model("llama", "float32", vocab_size=VOCABULARY + LIKENESSES[likeness])
    model = copy.deepcopy(model_of(name))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            shaken = torch.randn(weight.shape, generator=generator).to(weight.dtype)
            weight.add_(0.05 * shaken * weight.float().std(correction=0).to(weight.dtype))
    return model


@functools.cache
def is_invariant(name: ModelName, batch_size: int) -> bool:
    """Whether our kernels compute every token of a model alone."""
    source, model = random.Random(0), model_of(name)
    text = [source.randrange(VOCABULARY) for _ in range(211)]
    differs = any(mismatches(model, text, ExactMode(), LONGEST, batch_size))
    return kernels.serve(model) and not differs


def _random_model(kind: str, dtype: str, **changes: Any) -> Any:
    """Weights spread so widely that a near-tie is rare."""
    model_type, special = KINDS[kind] if kind in KINDS else OWN_KINDS[kind]
    config_class: Any = CONFIG_MAPPING[model_type]
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    config = config_class(**(_SHAPE | special | changes))
    model = auto.from_config(config, dtype=getattr(torch, dtype)).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            std = 0.3 * min(1.0, (64 / parameter.shape[-1]) ** 0.5)
            torch.nn.init.normal_(parameter, std=std)
    if dtype == "float64" and model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # the usual one knows no float64
    return model


def _with_twins(model: Any) -> Any:
    """Every other token's weights become those of the one before, but for last bits."""
    head = model.get_output_embeddings().weight
    columns = torch.Generator().manual_seed(0)
    twins = torch.arange(1, len(head), 2)
    with torch.no_grad():
        head[1::2] = head[0::2]
        for _ in range(8):
            column = torch.randint(head.shape[1], (len(twins),), generator=columns)
            head[twins, column] *= 1 + 2 * torch.finfo(head.dtype).eps
    return model
