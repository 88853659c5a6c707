"""Which models the engine can decode."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from copyspec_eval.decoding import kernels
from copyspec_eval.errors import ModelError, RequestError

REMEDY = "use --model hf for it"

_MOVING_ROPES = {"dynamic", "longrope"}
_SERVED_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}


def check_config(config: Any) -> None:
    """Refuse, before any weight is loaded, what is no decoder-only model (ModelError)."""
    if config.is_encoder_decoder:
        raise refusal(config, "is an encoder-decoder, not decoder-only")
    if _causal_lm_class(config) is None:
        raise refusal(config, "has no causal language model")
    _check_quantization(getattr(config, "quantization_config", None))


def needs_model_cache(config: Any) -> str:
    """Why the engine's attention and cache cannot serve a model; "" if they can try."""
    name, model_class = _model_type(config), _causal_lm_class(config)
    if model_class is None:
        return ""  # the config of a part, of a model that is loaded
    # A class whose layers may be recurrent can have models where none is.
    layers = set(getattr(config.get_text_config(), "layer_types", None) or ())
    if layers - _SERVED_LAYERS or (model_class._is_stateful and not layers):
        kinds = ", ".join(sorted(layers - _SERVED_LAYERS))
        what = f"layers of type {kinds}" if kinds else "a recurrent state"
        return f"model type {name!r} has {what}, not the keys and values of every position"
    interface = model_class._supports_attention_backend
    if not interface or not model_class._can_set_attn_implementation():
        return f"model type {name!r} does not use transformers' attention interface"
    return ""


def refusal(model: Any, what: str, remedy: str = REMEDY) -> ModelError:
    """Why a model, or that of a config, is not served: it `what`."""
    config = getattr(model, "config", model)
    return ModelError(f"model type {_model_type(config)!r} {what}; {remedy}")


def _model_type(config: Any) -> str:
    return str(getattr(config, "model_type", type(config).__name__))


def _check_quantization(config: Any) -> None:
    given = config.to_dict() if hasattr(config, "to_dict") else config or {}
    threshold = given.get("llm_int8_threshold") or 0
    # It keeps in 16 bits the columns in which any token of the step is beyond the threshold.
    if given.get("load_in_8bit") and threshold > 0:
        raise ModelError(
            f"llm_int8_threshold={threshold} makes a token depend on what else is in its step; set "
            f"it to 0.0 in quantization_config of config.json, or {REMEDY}"
        )


def check_exact(model: PreTrainedModel) -> None:
    """Refuse exact mode for experts whose shapes would depend on the drafts (ModelError)."""
    is_served = kernels.serve(model) or model._can_set_experts_implementation()
    if not is_served and has_experts(model):
        remedy = "pass exact=false (differences are then possible at near-ties)"
        raise refusal(model, "routes tokens to experts in shapes that depend on the drafts", remedy)


def check_uncompiled(model: torch.nn.Module) -> None:
    """Refuse a model of `torch.compile`: it would be compiled for every width of a step."""
    if hasattr(model, "_orig_mod"):
        raise ModelError("the model is wrapped by torch.compile; pass the module within, _orig_mod")
    if getattr(model, "_compiled_call_impl", None) is not None:
        raise ModelError("the model is compiled by its compile(); pass one that is not compiled")


def has_experts(model: torch.nn.Module) -> bool:
    """Whether tokens are routed to experts, a choice that rounding can change, too."""
    return any(
        "expert" in f"{name.rpartition('.')[2]} {type(module).__name__}".lower()
        or (getattr(module, "num_experts", None) or 0) > 1
        for name, module in model.named_modules()
        if name
    )


def input_device(model: PreTrainedModel) -> torch.device:
    """Where the model takes its token ids, also where accelerate keeps weights elsewhere."""
    embeddings = model.get_input_embeddings()
    hook = getattr(embeddings, "_hf_hook", None)
    device = getattr(hook, "execution_device", None)
    return torch.device(next(embeddings.parameters()).device if device is None else device)


def working_dtype(model: PreTrainedModel) -> torch.dtype:
    """The coarsest dtype among weights, autocast and torch's matrix precision (TF32: float16)."""
    products = {"highest": torch.float32, "high": torch.float16, "medium": torch.bfloat16}
    dtypes = [model.dtype, products[torch.get_float32_matmul_precision()]]
    device = input_device(model).type
    if torch.is_autocast_enabled(device):
        dtypes.append(torch.get_autocast_dtype(device))
    return max(torch.float32, *dtypes, key=lambda dtype: torch.finfo(dtype).eps)


def _causal_lm_class(config: Any) -> Any:
    class_name = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    # A config whose class came with the model was loaded by someone who trusts its code.
    if class_name is not None and type(config) not in AutoModelForCausalLM._model_mapping:
        return get_class_from_dynamic_module(
            class_name, config._name_or_path, revision=getattr(config, "_commit_hash", None)
        )
    return AutoModelForCausalLM._model_mapping.get(type(config), None)


def check_length(model: PreTrainedModel, length: int) -> None:
    """Refuse lengths at which a rotary embedding changes its frequencies for all positions.

    "longrope" and "dynamic" choose them by the highest position in the forward, so what a token
    sees would depend on where steps begin, and on the other rows.
    """
    config = model.config.get_text_config()
    for rope_type, limit in _rope_limits(config):
        if length > limit:
            raise RequestError(
                f"prompt and max_gen_toks take up to {length} positions, but past {limit} "
                f"model type {config.model_type!r} changes its {rope_type} embedding; "
                f"lower max_gen_toks, pass max_length={limit} to cut prompts, or {REMEDY}"
            )


def position_limit(model: PreTrainedModel) -> float:
    """Positions that the model has an embedding for, one that does not change with their number."""
    config = model.config.get_text_config()
    last = getattr(config, "max_position_embeddings", None)
    return min([last or math.inf, *(limit for _, limit in _rope_limits(config))])


def _rope_limits(config: Any) -> Iterator[tuple[str, int]]:
    """The rotary embeddings that change with length, and the length that each was made for."""
    rope = getattr(config, "rope_parameters", None) or {}
    # Some models have one embedding per layer type.
    for kind in [rope] if "rope_type" in rope else filter(None, rope.values()):
        if kind.get("rope_type") in _MOVING_ROPES:
            limit = kind.get("original_max_position_embeddings") or config.max_position_embeddings
            yield kind["rope_type"], limit
