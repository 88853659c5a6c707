"""The exact steps of a loaded model: measured once per model and machine, then kept."""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pooch
import torch
from transformers import PreTrainedModel

from copyspec_eval import journal, provenance
from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.compiling import is_compiled
from copyspec_eval.decoding.exactness import (
    check_exact_steps,
    fixed_steps,
    measure_exact_steps,
)
from copyspec_eval.decoding.model_copy import weights_hash
from copyspec_eval.decoding.serving import input_device
from copyspec_eval.drafters.registry import LONGEST_DRAFT
from copyspec_eval.errors import ModelError
from copyspec_eval.paths import tasks_dir
from copyspec_eval.sources import read_jsonl
from copyspec_eval.types import EXACT_MEANS, ExactSteps

logger = logging.getLogger("lm_eval.copyspec")

_TEXT_TOKENS = 4096
_FIXED_DRAFT = 15
"""The longest draft at a fixed width where no longer one is needed: a step of 16 tokens."""


def exact_steps(
    model: PreTrainedModel, tokenizer: Any, *, longest: int, needed: int, batch_size: int
) -> ExactSteps:
    """The steps of exact mode: kept from an earlier run and checked again, or measured now.

    Args:
        model: the model, loaded.
        tokenizer: its tokenizer, which turns a text of ours into tokens for it.
        longest: tokens of the longest draft that is wanted.
        needed: tokens of a draft that a step must hold.
        batch_size: rows side by side.

    Raises:
        OptionError: no step holds a draft of `needed` tokens.
        ModelError: the logits of a token depend on what follows it in the step.
    """
    token_ids = text_tokens(tokenizer)
    # The same for all shorter drafts, so that all of them have the same bits.
    widest = 1 + max(LONGEST_DRAFT, longest)
    path = _path(model, widest, batch_size)
    kept = _read(path)
    steps = kept.steps if kept else None
    if kept is None or (steps and not check_exact_steps(model, token_ids, steps, batch_size)):
        logger.info("measuring which steps have the same bits, once for this model and machine")
        steps = measure_exact_steps(model, token_ids, widest, batch_size)
        with suppress(OSError):  # measured again next time, then
            path.parent.mkdir(parents=True, exist_ok=True)
            journal.replace(path, msgspec.json.encode(_Kept(steps)).decode())
    if steps is None:
        steps = fixed_steps(max(needed, min(longest, _FIXED_DRAFT)))
        if not check_exact_steps(model, token_ids, steps, batch_size):
            raise ModelError(
                f"model type {model.config.model_type!r} computes a token's logits from what "
                "follows it in the step, too, so that drafts change them; use --model hf for it"
            )
    steps.check_holds(needed)
    logger.info("exact mode gives %s", EXACT_MEANS[steps.kind])
    return steps


@dataclass(frozen=True, slots=True)
class _Kept:
    """What was measured; no steps where widths do not agree."""

    steps: ExactSteps | None


def _read(path: Path) -> _Kept | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Kept)
    except (OSError, msgspec.DecodeError):
        return None


def _path(model: PreTrainedModel, widest: int, batch_size: int) -> Path:
    """Where the steps are kept: named after all that they depend on."""
    device = input_device(model)
    facts = {
        "weights": weights_hash(model),
        "config": model.config.to_json_string(),
        "dtype": str(model.dtype),
        "device": str(device),
        "autocast": torch.is_autocast_enabled(device.type)
        and str(torch.get_autocast_dtype(device.type)),
        "compiled": is_compiled(model),
        "kernels": kernels.serve(model),
        "threads": torch.get_num_threads(),
        "hardware": provenance.hardware(),
        "environment": provenance.kernel_environment(),
        "versions": provenance.versions(),
        "decoding": _code_hash(),
        "widest": widest,
        "batch_size": batch_size,
    }
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return Path(pooch.os_cache("copyspec_eval")) / "exact_steps" / f"{name}.json"


@cache
def _code_hash() -> str:
    """Of the files that compute a step."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for file in sorted([*folder.rglob("*.py"), *folder.rglob("*.cpp")]):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def text_tokens(tokenizer: Any) -> list[int]:
    """A text of ours in a tokenizer's tokens."""
    token_ids: list[int] = tokenizer(
        _text(), add_special_tokens=False, truncation=True, max_length=_TEXT_TOKENS
    )["input_ids"]
    return token_ids


@cache
def _text() -> str:
    """The conversations that come with the package: prose, code and figures."""
    rows = read_jsonl(tasks_dir() / "copyspec_quickstart" / "redundant.jsonl")
    return "\n".join(
        text for row in rows for text in (*row.fields["turns"], *row.fields["answers"])
    )
