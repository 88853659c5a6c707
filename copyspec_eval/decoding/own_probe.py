"""A trial at load of a model's own cache: whether drafts can be verified with it, and how.

It catches what no list of model types can: models whose forward of several tokens from a state is
another one than that of their tokens one by one, and caches that cannot be taken back.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.announced import announced
from copyspec_eval.decoding.model_support import (
    REMEDY,
    check_uncompiled,
    has_experts,
    model_type,
    needs_own_cache,
)
from copyspec_eval.decoding.own_cache import OwnCache, OwnCacheRunner
from copyspec_eval.decoding.probe import Reading, compare, probe, short_windows
from copyspec_eval.errors import ModelError
from copyspec_eval.types import CacheKind

_CONTEXT = 16
_STEPS = ((0, 0), (3, 0), (2, 6), (0, 5), (1, 1), (0, 0), (0, 15), (4, 0), (0, 2), (0, 0))
"""Right draft tokens of each step, and wrong ones behind them: rejected in a row, too, and followed
by a step without a draft."""
_WIDTH = 6
_HIGHEST_ID = 1000
"""Multimodal models have the ids of their images far up."""


class CacheChoice(NamedTuple):
    """Whose cache serves a model, and why not the engine's; "" if that one does."""

    kind: CacheKind
    reason: str = ""


@announced("comparing the engine's forward with this model's own")
def choose_cache(model: PreTrainedModel, *, exact: bool, batch_size: int) -> CacheChoice:
    """The engine's cache if its trial passes, else the model's own if that one's does.

    Args:
        model: the model, loaded.
        exact, batch_size: as of `probe`.

    Raises:
        ModelError: neither passes.
    """
    reason = needs_own_cache(model.config)
    if reason:
        return CacheChoice(probe_own(model), reason)
    try:
        probe(model, exact=exact, batch_size=batch_size)
    except ModelError as error:
        try:
            return CacheChoice(probe_own(model), str(error).removesuffix(f"; {REMEDY}"))
        except ModelError:
            raise error from None
    return CacheChoice("copyspec")


@torch.inference_mode()
def probe_own(model: PreTrainedModel) -> CacheKind:
    """Find on a short text how rejected tokens are taken back from a model's own cache.

    A prompt and steps with right and with wrong drafts are read as decoding reads them, and
    compared with one forward of the whole text without a cache, as `probe` does. Cropping is tried
    first, where the cache says that it can be cropped. What stands behind a token must not change
    its bits, but in a model with experts or whose forward does not repeat them.

    Raises:
        ModelError: the model is compiled, the logits differ, or its forward fails.
    """
    check_uncompiled(model)
    source = random.Random(0)
    highest = min(int(model.config.get_text_config().vocab_size), _HIGHEST_ID) - 1
    length = _CONTEXT + sum(1 + right for right, _ in _STEPS)
    text = [source.randint(0, highest) for _ in range(length)]
    try:
        with short_windows(model):
            return _kind(model, text, [(token + 1) % (highest + 1) for token in text])
    except ModelError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ModelError(
            f"model type {model_type(model.config)!r} fails with its own cache ({what[:150]}); "
            f"{REMEDY}"
        ) from error


def _kind(model: PreTrainedModel, text: Sequence[int], wrong: Sequence[int]) -> CacheKind:
    whole = OwnCache(model).read_without(text, keep=len(text)).float()
    cache = OwnCache(model)
    cache.read(text[:_CONTEXT], keep=1)
    _check_bits(model, cache, text, wrong)
    if cache.is_croppable:
        try:
            _compare(model, "model, cropped", text, wrong, whole)
        except Exception:  # whatever it is: copies need nothing of the cache
            pass
        else:
            return "model, cropped"
    _compare(model, "model, copied", text, wrong, whole)
    return "model, copied"


def _compare(
    model: PreTrainedModel,
    kind: CacheKind,
    text: Sequence[int],
    wrong: Sequence[int],
    whole: torch.Tensor,
) -> None:
    readings = list(_readings(model, kind, text, wrong))
    for of_kind in ("a prefill", "a step"):
        chosen = [reading for reading in readings if reading.kind == of_kind]
        compare(model, chosen, whole, through="its own cache")


def _readings(
    model: PreTrainedModel, kind: CacheKind, text: Sequence[int], wrong: Sequence[int]
) -> Iterator[Reading]:
    runner = OwnCacheRunner(model, max(map(sum, _STEPS)), kind)
    yield Reading("a prefill", runner.begin(text[:_CONTEXT]), [_CONTEXT - 1])
    end = _CONTEXT + 1
    for num_right, num_wrong in _STEPS:
        draft = [*text[end : end + num_right], *wrong[:num_wrong]]
        logits = runner.verify(text[:end], draft)
        yield Reading("a step", logits[: 1 + num_right], range(end - 1, end + num_right))
        runner.reject(num_wrong)
        end += 1 + num_right


def _check_bits(
    model: PreTrainedModel, cache: OwnCache, text: Sequence[int], wrong: Sequence[int]
) -> None:
    """
    Raises:
        ModelError: a token's bits depend on those behind it.
    """
    if has_experts(model):
        return
    half, end = _CONTEXT + _WIDTH // 2, _CONTEXT + _WIDTH
    texts = [text[:end], [*text[:half], *wrong[half:end]]]
    right, other, again = (cache.copied().read(ids, keep=_WIDTH) for ids in (*texts, texts[1]))
    if torch.equal(other, again) and not torch.equal(right[: _WIDTH // 2], other[: _WIDTH // 2]):
        raise ModelError(
            f"model type {model_type(model.config)!r} computes a token's logits from what else is "
            f"in the step (of {_WIDTH} tokens), as with a scale per tensor; {REMEDY}"
        )
