"""`--model_args`: which exist and which values they take, checked before a model is loaded."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from copyspec_eval.decoding.model_support import check_config, needs_model_cache
from copyspec_eval.drafters.registry import store_option
from copyspec_eval.errors import ModelError, OptionError, unknown_option
from copyspec_eval.paths import model_path
from copyspec_eval.session.loading import first_line, loading
from copyspec_eval.session.session import checked_draft_model
from copyspec_eval.session.settings import check_bool, draft_options
from copyspec_eval.types import DraftOptions

DRAFTING = {field.name for field in fields(DraftOptions)}
OUR_OPTIONS = {*DRAFTING, "exact", "paired", "arms", "prefix_cache"}
# What `from_pretrained` takes beyond lm-eval's own list and the fields of the model's config.
LOADING_OPTIONS = {
    *("cache_dir", "code_revision", "device_map", "experts_implementation", "force_download"),
    *("key_mapping", "local_files_only", "low_cpu_mem_usage", "proxies", "token", "torch_dtype"),
    *("use_safetensors", "variant"),
}
_NOT_QUANTIZED = "would quantize nothing; pass the name or folder of a checkpoint saved quantized"
_REFUSED = {
    "attn_implementation": "is not used: copyspec decodes with its own attention; leave it out",
    # transformers 5 hands these to the model's constructor; lm-eval sets the last one itself.
    "bnb_4bit_": _NOT_QUANTIZED,
    "load_in_4bit": _NOT_QUANTIZED,
    "load_in_8bit": _NOT_QUANTIZED,
    "quantization_config": _NOT_QUANTIZED,
    "max_memory": "is not read by lm-eval; pass max_memory_per_gpu or max_cpu_memory",
    # lm-eval makes every process rank 0 of 1 then, and each would answer and record everything.
    "tp_plan": "is not supported; pass parallelize=True to spread the layers over devices",
}


def drafting(
    drafter: str | None = "", gamma: int | None = None, store: object = False, **others: Any
) -> DraftOptions:
    """How to draft, from `model_args`: lm-eval reads the word "none" as None."""
    chosen = "none" if drafter is None else drafter or None
    return draft_options(chosen, gamma, store=store_option(store), **others)


def check_values(options: Mapping[str, Any]) -> None:
    """Refuse what lm-eval would take and then fail with, or ignore."""
    # lm-eval searches for the size of auto:N N times; ours needs no search.
    rows = options.get("batch_size", 1)
    if not re.fullmatch(r"auto(:[0-9]+)?|0*[1-9][0-9]*", str(rows)):
        raise OptionError(f"batch_size={rows!r} is neither a number of at least 1 nor auto")
    dtype = options.get("dtype") or "auto"
    resolved = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype != "auto" and not getattr(resolved, "is_floating_point", False):
        raise OptionError(f"dtype={dtype!r}: use a torch dtype, e.g. bfloat16")
    if options.get("device") is not None:
        _check_device(options["device"])
    max_length = options.get("max_length")
    if max_length is not None and (type(max_length) is not int or max_length < 1):
        raise OptionError(f"max_length={max_length!r} is not a number of tokens of at least 1")
    for name, kind in _harness_options().items():
        if kind in ("bool", "bool | None") and options.get(name) is not None:
            check_bool(name, options[name])
    if options.get("peft") and find_spec("peft") is None:
        raise OptionError("peft=… needs the package peft; pip install peft")
    for name in ("device_map", "max_memory_per_gpu", "max_cpu_memory"):
        if options.get(name) is not None and options.get("parallelize", False) is False:
            raise OptionError(f"{name} needs parallelize=True")


def _check_device(name: object) -> None:
    reason = f"CUDA devices: {torch.cuda.device_count()}"
    try:
        device = torch.device(name)  # type: ignore[call-overload]
        if device.type != "cuda":
            torch.empty(0, device=device)
        # Not tried, or every rank would take memory of the first one. Without any, lm-eval's
        # default is cuda:0 all the same.
        if device.type != "cuda" or (device.index or 0) < max(torch.cuda.device_count(), 1):
            return
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        reason = first_line(error)
    raise OptionError(f"device={str(name)!r} is not available ({reason}); pass e.g. cpu")


def checked_config(pretrained: Any, options: Mapping[str, Any]) -> Any:
    is_name = isinstance(pretrained, str)
    if not (is_name or hasattr(pretrained, "config")):
        raise OptionError(
            f"pretrained={pretrained!r} is neither a model nor the name of one; pass a Hub name, "
            "a folder, or a loaded model"
        )
    config = _read_config(pretrained, options, "pretrained") if is_name else pretrained.config
    _check_names(options, config)
    check_config(config)
    return config


def check_draft_model(name: str, tokenizer: str, options: Mapping[str, Any]) -> None:
    """Refuse a draft model whose vocabulary is not the target's, before loading its weights."""
    access = _access(options)
    check_config(config := _read_config(model_path(name), access, "draft_model"))
    if reason := needs_model_cache(config):
        raise ModelError(f"draft_model={name!r}: {reason}; pass another one")
    vocabularies = []
    for each in (tokenizer, model_path(name)):
        with loading("tokenizer", each, "it is needed to compare its tokens with the other's"):
            vocabularies.append(AutoTokenizer.from_pretrained(each, **access).get_vocab())
    target, draft = vocabularies
    if target != draft:
        different = sum(draft.get(token) != index for token, index in target.items())
        raise ModelError(
            f"draft_model={name!r} has a different vocabulary from {tokenizer!r}: {len(draft)} "
            f"tokens and {len(target)}, of which {different} have another id there or none; pass "
            "a model of the same family"
        )


def load_draft_model(
    name: str, dtype: torch.dtype, device: torch.device, options: Mapping[str, Any]
) -> PreTrainedModel:
    auto: Any = AutoModelForCausalLM
    with loading("draft_model", name, "check its files"):
        model = auto.from_pretrained(model_path(name), dtype=dtype, **_access(options))
        model.to(device).eval()
    return checked_draft_model(model)


def _access(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that hold for every model, the draft model included."""
    names = ("trust_remote_code", "cache_dir", "token")
    return {name: options[name] for name in names if name in options}


def _read_config(pretrained: str, options: Mapping[str, Any], option: str) -> Any:
    names = ("revision", "subfolder", "gguf_file", "cache_dir", "token")
    chosen = {name: options[name] for name in names if options.get(name)}
    # Without a value, transformers asks at the keyboard whether to run a model's code.
    chosen["trust_remote_code"] = bool(options.get("trust_remote_code"))
    remedy = "pass a Hub name or a folder with config.json"
    with loading(option, pretrained, f"{remedy}; trust_remote_code=True runs the code in it"):
        return AutoConfig.from_pretrained(pretrained, **chosen)


def _check_names(options: Mapping[str, Any], config: Any) -> None:
    ours_and_harness = {*OUR_OPTIONS, *_harness_options()} - _REFUSED.keys()
    for name, value in options.items():
        refused = "bnb_4bit_" if name.startswith("bnb_4bit_") else name
        if refused in _REFUSED:
            raise OptionError(f"{name}={value!r} {_REFUSED[refused]}")
        if name not in ours_and_harness | LOADING_OPTIONS and not hasattr(config, name):
            raise unknown_option("model_arg", name, ours_and_harness)
    configured = getattr(config.get_text_config(), "max_position_embeddings", None)
    positions = options.get("max_position_embeddings", configured)
    if positions is not None and (options.get("max_length") or 0) > positions:
        raise OptionError(
            f"max_length={options['max_length']} is more than the {positions} positions of the "
            f"model; pass {positions} at most, or max_position_embeddings=N if it can read so many"
        )


def _harness_options() -> dict[str, Any]:
    parameters = inspect.signature(HFLM.__init__).parameters.values()
    return {p.name: p.annotation for p in parameters if p.name not in ("self", "kwargs")}
