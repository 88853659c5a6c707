"""A trial at load, which decodes a short text to find whose cache can serve a model.

It catches what no list of model types can: masks, caches, experts or number formats that the
engine does not know, and a cache that cannot be rolled back.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from copyspec_eval.announced import announced
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.given import Given, scripted_drafts
from copyspec_eval.decoding.model_cache import ModelCache
from copyspec_eval.decoding.model_copy import model_configs
from copyspec_eval.decoding.model_support import (
    REMEDY,
    check_uncompiled,
    has_experts,
    needs_model_cache,
    refusal,
    working_dtype,
)
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.errors import ModelError
from copyspec_eval.types import CacheKind, Draft, ExactMode

_CONTEXT = 16
_STEPS = ((1, 1), (3, 0), (2, 6), (0, 5), (0, 0), (0, 15), (15, 0), (0, 2))
"""Right draft tokens of each step and wrong ones after them, with rejections in a row and a step
without a draft. The first is the prefill's, where that may have one."""
_MOST_ROWS = 2
"""A second row shows what rows do to each other; the check of exact mode takes all of a batch."""
_BRANCH = 2
"""Wrong tokens of a tree, before the right ones."""

_WINDOW_NAMES = ("sliding_window", "attention_chunk_size")
_WINDOW = 5

MOST_ROUNDING = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.25}
"""By dtype, what rounding can do to a position's logits: root mean square over the vocabulary, in
standard deviations of the logits. Measured over models of a hundred architectures, tiny and of
24 and 30 layers: 1.3e-4, 0.013 and 0.087."""


class CacheChoice(NamedTuple):
    """Whose cache serves a model, and why not the engine's; "" if that one does."""

    kind: CacheKind
    reason: str = ""


@announced("comparing the engine's forward with this model's own")
def choose_cache(model: PreTrainedModel, *, exact: bool, batch_size: int) -> CacheChoice:
    """The engine's cache if its trial passes, else the model's own; ModelError if neither does."""
    reason, refusal = needs_model_cache(model.config), None
    if not reason:
        try:
            check_cache(model, "copyspec", exact=exact, batch_size=batch_size)
            return CacheChoice("copyspec")
        except ModelError as error:
            refusal, reason = error, str(error).removesuffix(f"; {REMEDY}")
    try:
        check_cache(model, "model")
        return CacheChoice("model", reason)
    except ModelError as error:
        raise refusal or error from None


@torch.inference_mode()
def check_cache(
    model: PreTrainedModel, cache: CacheKind, *, exact: bool = False, batch_size: int = 1
) -> None:
    """Check that decoding with a cache gives the logits of the model's own forward without one.

    A prompt and steps with right and wrong drafts are decoded to a given output, then trees (not in
    exact mode), with attention windows so short that they matter. A position's logits may differ by
    `MOST_ROUNDING`; with experts in half precision, the median position's. Without exact mode, the
    logits must be the same bits with other wrong tokens and other rows, if the model has no experts
    and repeats its own bits.

    Raises:
        ModelError: the model is compiled, the logits differ, or a forward fails.
    """
    check_uncompiled(model)
    trial = _Trial(model, cache, exact, batch_size)
    with short_windows(model):
        reference = trial.reference()
        try:
            logits = trial.decode()
            # The first tokens follow from the prefill.
            trial.compare("in a prefill", logits[:1], reference[:1])
            trial.compare("in a step", logits[1:], reference[1:])
            # The check of exact mode finds more. Stock experts depend on each other's tokens.
            if not exact and not has_experts(model):
                trial.check_bits(logits)
            if cache == "copyspec" and not exact:
                trial.compare("in a tree", trial.decode(is_tree=True), reference)
        except ModelError:
            raise
        except Exception as error:
            raise refusal(model, f"fails through {trial.through} {_one_line(error)}") from error


class _Trial:
    """A text that is decoded in row 0, beside others in the other rows."""

    def __init__(
        self, model: PreTrainedModel, cache: CacheKind, exact: bool, batch_size: int
    ) -> None:
        self._model, self._cache, self._num_rows = model, cache, min(batch_size, _MOST_ROWS)
        self.through = "the engine's cache" if cache == "copyspec" else "its own cache"
        self._engine = Engine(
            model,
            NoDrafter,
            num_draft_tokens=max(map(sum, _STEPS)),
            exact=ExactMode() if exact else None,
            batch_size=self._num_rows,
            cache=cache,
        )
        source = random.Random(0)
        # Multimodal models keep the ids of their images at the end of the vocabulary.
        self._num_ids = min(1000, int(model.config.get_text_config().vocab_size))
        length = _CONTEXT + 1 + sum(1 + right for right, _ in _STEPS)
        self._texts = [
            [source.randint(0, self._num_ids - 1) for _ in range(length)] for _ in range(3)
        ]

    def reference(self) -> torch.Tensor:
        """The logits from the prompt's end on, without a cache: `[tokens, vocabulary]`, float32."""
        text = self._texts[0][:-1]
        try:
            logits = ModelCache(self._model).read_without(text, keep=len(text) - _CONTEXT + 1)
        except Exception as error:
            remedy = "check how it was made, and what you pass with it"
            raise refusal(
                self._model, f"fails in its own forward {_one_line(error)}", remedy
            ) from error
        return logits.float()

    def decode(self, number: int = 0, is_tree: bool = False) -> torch.Tensor:
        """The logits that decoding chooses from; 1 has other wrong tokens and other rows than 0."""
        rows = []
        for text in [self._texts[0], *[self._texts[1 + number]] * (self._num_rows - 1)]:
            answer_ids = text[_CONTEXT:]
            wrong_ids = [(token + 1 + number) % self._num_ids for token in answer_ids]
            # A model's own cache has no draft after the prompt.
            start = 0 if self._cache == "copyspec" else 1
            drafts = scripted_drafts(answer_ids, _STEPS, wrong_ids, start)
            if is_tree:
                drafts = {
                    place: _as_tree(draft.cut(num_right), wrong_ids[place : place + _BRANCH])
                    for (place, draft), (num_right, _) in zip(drafts.items(), _STEPS, strict=True)
                }
            rows.append(Given(text[:_CONTEXT], answer_ids, drafts))
        self._engine.generate(rows)
        return torch.stack([*rows[0].logits]).float()

    def compare(self, where: str, logits: torch.Tensor, reference: torch.Tensor) -> None:
        """Refuse float32 logits `[positions, vocabulary]` that rounding does not explain."""
        scale = reference.std() + torch.finfo(torch.float32).tiny
        errors = (logits - reference).square().mean(-1).sqrt() / scale
        dtype = working_dtype(self._model)
        # A last bit can move an 8-bit value by a whole step.
        if getattr(self._model, "is_quantized", False):
            dtype = torch.bfloat16
        flips = dtype != torch.float32 and has_experts(self._model)
        error, bound = errors.median() if flips else errors.max(), MOST_ROUNDING[dtype]
        if not error <= bound:
            how_far = f"{where} off by {float(error):.1g} standard deviations"
            why = f"({how_far}, where {str(dtype)[6:]} explains {bound:g})"
            raise refusal(self._model, f"gives other logits through {self.through} {why}")

    def check_bits(self, logits: torch.Tensor) -> None:
        """Refuse a model whose bits depend on the wrong tokens of a draft, or on other rows."""
        other = self.decode(1)
        if not torch.equal(logits, other) and torch.equal(other, self.decode(1)):
            what = "computes a token's logits differently with other tokens in its step"
            raise refusal(self._model, f"{what}, as with a scale per tensor")


def _as_tree(draft: Draft, wrong_ids: Sequence[int]) -> Draft:
    """Wrong tokens that branch off before a draft's."""
    token_ids = (*wrong_ids, *draft.token_ids)
    begins = (0, len(wrong_ids))
    parents = tuple(-1 if at in begins else at - 1 for at in range(len(token_ids)))
    return replace(draft, token_ids=token_ids, parents=parents, positions=(-1,) * len(token_ids))


def _one_line(error: Exception) -> str:
    return f"({type(error).__name__}: {' '.join(str(error).split())}"[:150] + ")"


@contextmanager
def short_windows(model: PreTrainedModel) -> Iterator[None]:
    """Shorten the model's attention windows, wherever they are kept, to a few tokens."""
    windows = [
        (holder, name, vars(holder)[name])
        for holder in (*model.modules(), *model_configs(model))
        for name in _WINDOW_NAMES
        if type(vars(holder).get(name)) is int and vars(holder)[name] > _WINDOW
    ]
    try:
        for holder, name, _ in windows:
            setattr(holder, name, _WINDOW)
        yield
    finally:
        for holder, name, window in windows:
            setattr(holder, name, window)
