"""Tiny random models of every causal language model that the installed transformers has."""

import inspect
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

VOCABULARY = 120
MOST_PARAMETERS = 30_000_000

_SIZES: dict[int, str] = {
    VOCABULARY: "vocab_size vocab_size_per_layer_input",
    256: "max_position_embeddings n_positions max_seq_len",
    48: "intermediate_size ffn_dim n_inner ffn_hidden_size intermediate_size_mlp",
    32: "hidden_size d_model n_embd embedding_size word_embed_proj_dim",
    16: "moe_intermediate_size expert_ffn_hidden_size shared_expert_intermediate_size "
    "shared_intermediate_size dense_intermediate_size q_lora_rank kv_lora_rank",
    8: "head_dim qk_rope_head_dim qk_nope_head_dim v_head_dim kv_channels "
    "hidden_size_per_layer_input",
    4: "num_hidden_layers n_layer n_layers num_layers num_attention_heads n_head n_heads num_heads "
    "num_experts num_local_experts n_routed_experts moe_num_experts laurel_rank",
    2: "num_key_value_heads num_experts_per_tok moe_topk moe_top_k moe_k top_k_experts "
    "num_kv_shared_layers max_window_layers",
    1: "n_group topk_group bos_token_id",
    0: "pad_token_id",
}
_FIELDS: dict[str, Any] = {name: size for size, names in _SIZES.items() for name in names.split()}
# Shorter than the prompts, and longer than what a weak probe reads.
_FIELDS |= dict.fromkeys(("sliding_window", "attention_chunk_size", "local_attention"), 16)
# With tied embeddings a random model says one token forever.
_FIELDS |= {"eos_token_id": None, "tie_word_embeddings": False}
_FIELDS |= {"is_decoder": True, "use_sliding_window": True}
_MIXED_LAYERS = ["sliding_attention", "full_attention"]

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_PART: dict[str, Any] = {
    name: _FIELDS[name]
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")
} | {"num_hidden_layers": 2}
_VISION = {"image_size": 28, "patch_size": 14} | _PART

_MAMBA_HEADS: dict[str, Any] = {"mamba_n_heads": 4, "mamba_d_head": 16}

SETTINGS: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "bamba": _MAMBA_HEADS | {"attn_layer_indices": [1, 3]},
    "codegen": {"rotary_dim": 4},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": _ROPE | {"mrope_section": [1, 1, 2]}}
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 48, "moe_top_k": 2},
    },
    "doge, with experts": {"is_moe": True},
    "dots1": {"n_shared_experts": 1},
    "fuyu": {"text_config": {"model_type": "persimmon"} | _PART},
    "gemma3": {"vision_config": _VISION},
    "gemma4_text, with experts": {"enable_moe_block": True},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 16},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": _MAMBA_HEADS | {"layer_types": ["mamba", "attention"] * 2},
    "granitemoehybrid, attention only": {
        "layer_types": ["full_attention"] * 4,
        "num_local_experts": 0,
    }
    | _MAMBA_HEADS,
    "kimi_linear": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "laguna": {"layer_types": _MIXED_LAYERS * 2},
    "lfm2, with convolutions": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1},
    "mellum": {"layer_types": _MIXED_LAYERS * 2},
    "phi4_multimodal": {"vision_config": _VISION, "audio_config": {"hidden_size": 32}},
    "xlm": {"emb_dim": 32, "n_words": VOCABULARY},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {"layer_types": ["linear_attention", "hybrid"] * 2, "n_mamba_heads": 4},
    "zaya": {"num_experts_per_tok": 1},
}
"""By model type, or by "type, variant": what it needs beyond sizes to be built small, or to have
the parts that it is known for."""


class NotBuiltError(Exception):
    """An architecture has no tiny model here; the text says why."""


def architectures() -> list[str]:
    """The model types that transformers maps to a causal language model, and variants of some."""
    variants = {name for name in SETTINGS if "," in name}
    return sorted(variants.union(AutoModelForCausalLM._model_mapping._model_mapping))


def config_class(architecture: str) -> Any:
    return CONFIG_MAPPING[architecture.partition(",")[0]]


def tiny_config(architecture: str) -> Any:
    """A config of small sizes.

    Raises:
        NotBuiltError: the config does not take them.
    """
    made = config_class(architecture)
    try:
        return made(**(_fields(made) | SETTINGS.get(architecture, {})))
    except Exception as error:
        raise NotBuiltError(one_line(error)) from error


def tiny_model(config: Any, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The same weights each time, spread so widely that the argmax is rarely a near-tie.

    Raises:
        NotBuiltError: no model is made from `config`, or none that is small.
    """
    auto: Any = AutoModelForCausalLM
    try:
        with torch.device("meta"):
            num_parameters = auto.from_config(config).num_parameters()
        if num_parameters > MOST_PARAMETERS:
            raise NotBuiltError(f"it has {num_parameters:,} parameters at these sizes")
        torch.manual_seed(0)
        model: PreTrainedModel = auto.from_config(config, dtype=dtype).eval()
    except NotBuiltError:
        raise
    except Exception as error:
        raise NotBuiltError(one_line(error)) from error
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:150]


def _fields(made: Any) -> dict[str, Any]:
    """Small values for the fields that a config class has, and for the configs of its parts."""
    known = inspect.signature(made).parameters
    fields = {name: value for name, value in _FIELDS.items() if name in known}
    if "kv_lora_rank" in known:
        fields["num_key_value_heads"] = fields["num_attention_heads"]
    if "layer_types" in known and set(made().layer_types or ()) == set(_MIXED_LAYERS):
        fields["layer_types"] = _MIXED_LAYERS * 2
    for name, part in (getattr(made, "sub_configs", None) or {}).items():
        if name in known and "vocab_size" in inspect.signature(part).parameters:
            fields[name] = _fields(part)
    return fields
