"""The model of `draft_model=`: what it may be, and how it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.probe import probe
from copyspec_eval.decoding.serving import check_config, needs_own_cache
from copyspec_eval.errors import ModelError
from copyspec_eval.harness import options
from copyspec_eval.paths import model_path


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
    if reason := needs_own_cache(config):
        raise ModelError(f"draft_model={name!r}: {reason}; pass another one")
    options.check_same_tokens(tokenizer, model_path(name), arguments)


def load(
    name: str | None,
    delta: int,
    dtype: torch.dtype,
    device: torch.device,
    arguments: Mapping[str, Any],
) -> DraftModel | None:
    """Load a draft model, if one is named, in the target's dtype and on its device.

    Raises:
        ModelError: it cannot be loaded, or the engine's forward is not its own.
    """
    if name is None:
        return None
    auto: Any = AutoModelForCausalLM
    with options.loading("draft_model", name, "check its files"):
        model = auto.from_pretrained(model_path(name), dtype=dtype, **options.of_access(arguments))
        model = model.to(device).eval()
    probe(model, exact=False)
    return DraftModel(model, delta)
