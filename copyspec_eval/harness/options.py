"""`--model_args`: which exist, and what they may be, checked before a model is loaded."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lm_eval.models.huggingface import HFLM
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

from copyspec_eval.errors import ModelError, OptionError, unknown_option
from copyspec_eval.types import DraftOptions

OWN_OPTIONS = (*(field.name for field in fields(DraftOptions)), "exact", "paired")

# What `from_pretrained` takes beyond lm-eval's own list and the fields of the model's config.
_LOADING_OPTIONS = {
    "cache_dir",
    "code_revision",
    "device_map",
    "experts_implementation",
    "force_download",
    "key_mapping",
    "local_files_only",
    "low_cpu_mem_usage",
    "max_memory",
    "proxies",
    "token",
    "torch_dtype",
    "use_safetensors",
    "variant",
}

_NOT_QUANTIZED = "would quantize nothing; pass the name or folder of a checkpoint saved quantized"
_REFUSED = {
    "attn_implementation": "is not used: copyspec decodes with its own attention; leave it out",
    # transformers 5 hands these to the model's constructor; lm-eval sets the last one itself.
    "bnb_4bit_": _NOT_QUANTIZED,
    "load_in_4bit": _NOT_QUANTIZED,
    "load_in_8bit": _NOT_QUANTIZED,
    "quantization_config": _NOT_QUANTIZED,
    # lm-eval makes every process rank 0 of 1 then, and each would answer and record everything.
    "tp_plan": "is not served; pass parallelize=True to spread the layers over devices",
}


def check_bool(name: str, value: object) -> bool:
    """`value` if it is a bool.

    Raises:
        OptionError: it is something else.
    """
    if not isinstance(value, bool):
        raise OptionError(f"{name}={value!r} is neither true nor false")
    return value


def check_batch_size(value: object) -> None:
    """Accept a number of rows, or `auto`.

    Raises:
        OptionError: it is something else.
    """
    # lm-eval takes auto:N too, to look for the size anew N times; ours needs no search.
    if str(value).partition(":")[0] != "auto" and not (
        str(value).isdecimal() and int(str(value)) >= 1
    ):
        raise OptionError(f"batch_size={value!r} is neither a number of at least 1 nor auto")


def of_access(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those model arguments that hold for any model that is loaded beside the target."""
    return {
        key: options[key] for key in ("trust_remote_code", "cache_dir", "token") if key in options
    }


def read_config(
    pretrained: str, options: Mapping[str, Any], named: str = "pretrained"
) -> PretrainedConfig:
    """The config of the model in the argument `named`, without its weights.

    Raises:
        ModelError: there is no model of that name or path.
    """
    keys = ("revision", "trust_remote_code", "subfolder", "gguf_file", "cache_dir", "token")
    chosen = {key: options[key] for key in keys if options.get(key)}
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(pretrained, **chosen)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"{named}={pretrained!r} cannot be loaded: {reason} "
            "(pass a Hub name or a folder with config.json)"
        ) from error
    return config


def check_same_tokens(pretrained: str, draft_model: str, options: Mapping[str, Any]) -> None:
    """Refuse a draft model whose token ids mean something else.

    Raises:
        ModelError: a tokenizer cannot be loaded, or the two differ.
    """
    vocabularies = []
    for name in (options.get("tokenizer") or pretrained, draft_model):
        try:
            vocabularies.append(
                AutoTokenizer.from_pretrained(name, **of_access(options)).get_vocab()
            )
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ModelError(f"the tokenizer of {name!r} cannot be loaded: {reason}") from error
    target, draft = vocabularies
    if target != draft:
        different = sum(draft.get(token) != index for token, index in target.items())
        raise ModelError(
            f"draft_model={draft_model!r} has another vocabulary than {pretrained!r}: {len(draft)} "
            f"tokens and {len(target)}, of which {different} have another id there or none; pass "
            "a model of the same family"
        )


def check_names(options: Mapping[str, Any], config: PretrainedConfig) -> None:
    """Refuse model arguments that nothing would read, or that cannot work.

    Raises:
        OptionError: a name that is neither ours, lm-eval's, `from_pretrained`'s nor a field of the
            model's config; or one of `_REFUSED`.
    """
    ours_and_harness = {*OWN_OPTIONS, *_harness_options()} - _REFUSED.keys()
    for name, value in options.items():
        refused = "bnb_4bit_" if name.startswith("bnb_4bit_") else name
        if refused in _REFUSED:
            raise OptionError(f"{name}={value!r} {_REFUSED[refused]}")
        known = name in ours_and_harness or name in _LOADING_OPTIONS
        if not known and not hasattr(config, name):
            raise unknown_option("model_arg", name, ours_and_harness)


def _harness_options() -> set[str]:
    parameters = inspect.signature(HFLM.__init__).parameters.values()
    return {p.name for p in parameters if p.kind is not p.VAR_KEYWORD} - {"self"}
