"""A model's own cache and attention, for models whose attention is not the engine's to replace."""

from __future__ import annotations

import copy
import inspect
from collections import abc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from copyspec_eval.decoding.model_support import REMEDY, input_device, model_type
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.steps import Prompt, Rows, StepLogits
from copyspec_eval.errors import ModelError
from copyspec_eval.types import CacheKind, Draft, Verdict

_MOST_UNREAD = 8
"""Tokens that are read again after rejected drafts, before a step goes without a draft."""


class ModelCache:
    """A model's own cache of one text, read as `model.generate` reads it.

    Args:
        model: any causal language model.

    Attributes:
        num_read: tokens of the text that the cache holds.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        self._parameters = inspect.signature(model.forward).parameters
        self._states: dict[str, Any] = {}
        self.num_read = 0

    @property
    def is_croppable(self) -> bool:
        """Whether tokens can be cropped, by the cache's own account."""
        return all(getattr(states, "is_croppable", False) for states in self._states.values())

    @torch.inference_mode()
    def read(self, token_ids: abc.Sequence[int], keep: int) -> torch.Tensor:
        """Read on to the end of `token_ids`, a text whose beginning was read.

        Args:
            token_ids: the whole text, longer than what was read.
            keep: of how many last tokens to return the logits; they are among the new ones.

        Returns:
            `[keep, vocabulary]`.

        Raises:
            ModelError: the model has no cache.
        """
        output = self._forward(token_ids, keep, use_cache=True)
        # Models have several names for their cache, and most make it themselves.
        self._states = self._model._update_model_kwargs_for_generation(output, {})
        if not any(states is not None for states in self._states.values()):
            raise ModelError(
                f"model type {model_type(self._model.config)!r} returns no cache of what it has "
                f"read; {REMEDY}"
            )
        self.num_read = len(token_ids)
        logits: torch.Tensor = output.logits
        return logits[0, -keep:]

    @torch.inference_mode()
    def read_without(self, token_ids: abc.Sequence[int], keep: int) -> torch.Tensor:
        """As `read`, of a whole text and without a cache; nothing is held afterwards."""
        assert not self.num_read
        logits: torch.Tensor = self._forward(token_ids, keep, use_cache=False).logits
        return logits[0, -keep:]

    def prepare_to_crop(self) -> None:
        """Make layers with a window remember what they would drop, until the next `crop`."""
        for states in self._states.values():
            states.activate_past_recording()

    @torch.inference_mode()
    def crop(self, num_tokens: int) -> None:
        """Forget the last `num_tokens` that were read; also to be called if there are none."""
        for states in self._states.values():
            states.crop(-num_tokens)
        self.num_read -= num_tokens

    @torch.inference_mode()
    def copied(self) -> ModelCache:
        """Another one that holds the same.

        Recurrent states are copied; keys and values, which are never changed in place, are shared.
        """
        memo = {id(tensor): tensor for tensor in self._immutable()}
        other = copy.copy(self)
        other._states = copy.deepcopy(self._states, memo)
        return other

    def _immutable(self) -> Iterator[torch.Tensor]:
        for states in self._states.values():
            for layer in getattr(states, "layers", ()):
                if isinstance(layer, DynamicLayer):
                    yield from (each for each in (layer.keys, layer.values) if each is not None)

    def _forward(self, token_ids: abc.Sequence[int], keep: int, use_cache: bool) -> Any:
        model = self._model
        ids = torch.tensor([token_ids], device=input_device(model))
        given = dict(self._states)
        if "position_ids" in self._parameters:
            given["position_ids"] = torch.arange(len(token_ids), device=ids.device)[None]
        if use_cache and "past_key_values" not in given and self._takes_dynamic_cache:
            config = model.config.get_text_config(decoder=True)
            given["past_key_values"] = DynamicCache(config=config)
        inputs = model.prepare_inputs_for_generation(
            ids,
            next_sequence_length=len(token_ids) - self.num_read,
            is_first_iteration=not self.num_read,
            use_cache=use_cache,
            **given,
        )
        if "logits_to_keep" in self._parameters:
            inputs["logits_to_keep"] = keep
        return model(**inputs, return_dict=True)

    @property
    def _takes_dynamic_cache(self) -> bool:
        """Whether `generate` would make a cache for the model, as it does for most."""
        supported: bool = self._model._supports_default_dynamic_cache()
        return supported and "past_key_values" in self._parameters


class ModelCacheRunner:
    """A `Runner` of one row with the model's own attention and cache.

    A rejected draft's tokens are cropped from the cache. Where that is not possible, the cache is
    copied before each draft; if it is rejected, the copy takes its place, and the next step reads
    the accepted tokens again in front of its own.

    Args:
        model: a model that `trial.check_cache` accepts.
        num_draft_tokens: of the longest draft.
        kind: how rejected tokens are taken back, as the trial found.

    Attributes:
        widest, packs, drafts_in_prefill, padding: as of `Runner`; no step has padding.
    """

    packs = False
    # A cache that is to be cropped is told so behind the prompt: of that it then keeps less.
    drafts_in_prefill = False
    padding = 0

    def __init__(self, model: PreTrainedModel, num_draft_tokens: int, kind: CacheKind) -> None:
        self._model = model
        self._num_draft_tokens = num_draft_tokens
        self._crops = kind == "model, cropped"
        self._cache = self._before = ModelCache(model)
        self.widest = 1 + num_draft_tokens

    @contextmanager
    def running(
        self, sequences: abc.Sequence[Sequence], beside: Iterable[Sequence]
    ) -> Iterator[None]:
        """As of `Runner`."""
        for sequence in sequences:
            sequence.extent = sequence.max_length + self._num_draft_tokens
        try:
            yield
        finally:
            self._cache = self._before = ModelCache(self._model)

    def load(self, sequence: Sequence) -> None:
        """As of `Runner`: nothing is kept."""

    def reads_together(self, prompts: abc.Sequence[Prompt]) -> bool:
        """As of `Runner`: there is one row."""
        return False

    def read(self, prompts: abc.Sequence[Prompt]) -> StepLogits:
        """As of `Runner`: the whole prompt at once, without a draft."""
        [(sequence, draft)] = prompts
        assert not draft.token_ids
        return StepLogits(self.begin(sequence.prompt_ids), [0])

    def begin(self, prompt_ids: abc.Sequence[int]) -> torch.Tensor:
        """Read a prompt into an empty cache; the logits after it, `[1, vocabulary]`."""
        self._cache = self._before = ModelCache(self._model)
        logits = self._cache.read(prompt_ids, keep=1)
        if self._crops:
            self._cache.prepare_to_crop()
        return logits

    @property
    def cache(self) -> ModelCache:
        """What was read."""
        return self._cache

    def resume(self, cache: ModelCache) -> None:
        """Go on from what another text, or this one, had read; that stays as it is."""
        self._cache = self._before = cache.copied()

    def can_draft(self, sequence: Sequence) -> bool:
        """As of `Runner`: not where much was rejected, so that the cache catches up."""
        return sequence.length - 1 - self._cache.num_read <= _MOST_UNREAD

    def step(self, rows: Rows, drafts: abc.Sequence[Draft]) -> StepLogits:
        """As of `Runner`."""
        [sequence], [draft] = rows, drafts
        assert sequence is not None
        return StepLogits(self.verify(sequence.token_ids, draft.token_ids), [0])

    def verify(self, token_ids: abc.Sequence[int], draft_ids: abc.Sequence[int]) -> torch.Tensor:
        """Read a text on to its end and a draft behind it.

        Returns:
            logits `[1 + draft, vocabulary]`: after the text, and after each draft token.
        """
        if draft_ids and not self._crops:
            self._before = self._cache.copied()
        return self._cache.read([*token_ids, *draft_ids], keep=1 + len(draft_ids))

    def accept(self, sequence: Sequence, start: int, draft: Draft, verdict: Verdict) -> None:
        """As of `Runner`."""
        self.reject(len(draft.token_ids) - verdict.num_accepted)

    def reject(self, num_tokens: int) -> None:
        """Take the last tokens of the draft that was just verified back, if any."""
        if self._crops:
            # Of no token as well: it lets go of what is behind the windows.
            self._cache.crop(num_tokens)
        elif num_tokens:
            self._cache = self._before

    def finish(self, sequence: Sequence) -> None:
        """As of `Runner`: nothing is kept."""

    def copy_row(self, source: int, target: int) -> None:
        """As of `Runner`: there is one row."""
        raise AssertionError

    def reread(self, sequence: Sequence, output_ids: abc.Sequence[int], keep: int) -> torch.Tensor:
        """As of `Runner`."""
        cache, prompt_ids = ModelCache(self._model), sequence.prompt_ids
        parts = [cache.read(prompt_ids, keep=1).float()]
        for end in _ends(len(output_ids), self.widest):
            read_ids = [*prompt_ids, *output_ids[:end]]
            parts.append(cache.read(read_ids, keep=len(read_ids) - cache.num_read).float())
        return torch.cat(parts)[-keep:]


def _ends(length: int, width: int) -> list[int]:
    """Where chunks of `width` end, the last one being shorter.

    >>> _ends(7, 3)
    [3, 6, 7]
    """
    return [*range(width, length, width), length] if length else []
