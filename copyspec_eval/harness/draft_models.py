"""The model of `draft_model=`: what it may be, and how it is loaded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.model_support import check_config, needs_model_cache
from copyspec_eval.decoding.trial import check_cache
from copyspec_eval.errors import ModelError
from copyspec_eval.harness import options
from copyspec_eval.paths import model_path
from copyspec_eval.types import DraftOptions


def check(name: str, tokenizer: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a draft model before any weight is loaded.

    Args:
        name: name or folder.
        tokenizer: name or folder of the target's.
        arguments: of the target.

    Raises:
        ModelError: it cannot be read, the engine's cache cannot serve it, or it has another
            vocabulary.
    """
    config = options.read_config(model_path(name), options.of_access(arguments), "draft_model")
    check_config(config)
    if reason := needs_model_cache(config):
        raise ModelError(f"draft_model={name!r}: {reason}; pass another one")
    options.check_same_tokens(tokenizer, model_path(name), arguments)


def loader(
    dtype: torch.dtype, device: torch.device, arguments: Mapping[str, Any]
) -> Callable[[DraftOptions], DraftModel | None]:
    """A function that loads the draft model of some options, if they name one; its weights once.

    It is loaded in the target's dtype and on its device.

    Raises:
        ModelError: by that function: it cannot be loaded, or the engine's forward is not its own.
    """

    @functools.cache
    def weights(name: str) -> PreTrainedModel:
        auto: Any = AutoModelForCausalLM
        access = options.of_access(arguments)
        with options.loading("draft_model", name, "check its files"):
            loaded = auto.from_pretrained(model_path(name), dtype=dtype, **access)
            model: PreTrainedModel = loaded.to(device).eval()
        check_cache(model, "copyspec")
        return model

    def load(draft_options: DraftOptions) -> DraftModel | None:
        name = draft_options.draft_model
        return None if name is None else DraftModel(weights(name), draft_options.delta)

    return load
