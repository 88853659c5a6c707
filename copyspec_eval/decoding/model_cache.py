"""A model's own cache and attention, for models whose attention is not the engine's to replace."""

import copy
import inspect
from collections import abc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from copyspec_eval.decoding.choosing import StepLogits
from copyspec_eval.decoding.model_support import input_device, refusal
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.types import Draft, Verdict

_MOST_UNREAD = 8
"""Tokens that are read again after rejected drafts, before a step goes without a draft."""


class ModelCache:
    """A model's own cache of one text in each of its rows, `num_read` tokens so far."""

    def __init__(self, model: PreTrainedModel, num_rows: int = 1) -> None:
        self._model: Any = model
        self._num_rows = num_rows
        self._parameters = inspect.signature(model.forward).parameters
        self._states: dict[str, Any] = {}
        self.num_read = 0

    @torch.inference_mode()
    def read(self, token_ids: abc.Sequence[int], keep: int) -> torch.Tensor:
        """Read on to the end of `token_ids`; logits of the last `keep`: `[keep, vocabulary]`.

        Raises:
            ModelError: the model has no cache.
        """
        output = self._forward(token_ids, keep, use_cache=True)
        # Models have several names for their cache, and most make it themselves.
        self._states = self._model._update_model_kwargs_for_generation(output, {})
        if not any(states is not None for states in self._states.values()):
            raise refusal(self._model, "returns no cache of what it has read")
        self.num_read = len(token_ids)
        logits: torch.Tensor = output.logits
        return logits[0, -keep:]

    @torch.inference_mode()
    def read_without(self, token_ids: abc.Sequence[int], keep: int) -> torch.Tensor:
        """As `read`, of a whole text and without a cache."""
        assert not self.num_read
        logits: torch.Tensor = self._forward(token_ids, keep, use_cache=False).logits
        return logits[0, -keep:]

    @torch.inference_mode()
    def copied(self) -> "ModelCache":
        """A copy that shares the keys and values, which never change in place."""
        layers = [
            layer for states in self._states.values() for layer in getattr(states, "layers", ())
        ]
        dynamic = [layer for layer in layers if isinstance(layer, DynamicLayer)]
        memo = {id(each): each for layer in dynamic for each in (layer.keys, layer.values)}
        other = copy.copy(self)
        other._states = copy.deepcopy(self._states, memo)
        return other

    def _forward(self, token_ids: abc.Sequence[int], keep: int, use_cache: bool) -> Any:
        model = self._model
        ids = torch.tensor([token_ids], device=input_device(model)).expand(self._num_rows, -1)
        given = dict(self._states)
        if "position_ids" in self._parameters:
            given["position_ids"] = torch.arange(len(token_ids), device=ids.device)[None]
        # As `generate` does for most models.
        makes_cache = "past_key_values" in self._parameters.keys() - given.keys()
        if use_cache and makes_cache and model._supports_default_dynamic_cache():
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


class ModelCacheRunner:
    """`RowRunner`'s counterpart for one row, with the model's own attention and cache.

    The cache is copied before each draft. If the draft is rejected, the copy takes its place, and
    the next step reads the accepted tokens again before its own.
    """

    packs = False
    padding = 0

    def __init__(self, model: PreTrainedModel, num_draft_tokens: int) -> None:
        self._model = model
        self._cache = self._before = ModelCache(model)
        self.widest = 1 + num_draft_tokens

    @contextmanager
    def running(
        self, sequences: abc.Sequence[Sequence], others: Iterable[Sequence]
    ) -> Iterator[None]:
        try:
            yield
        finally:
            self._cache = self._before = ModelCache(self._model)

    def load(self, sequence: Sequence) -> None:
        """Nothing is stored."""

    def read(self, sequences: abc.Sequence[Sequence], drafts: abc.Sequence[Draft]) -> StepLogits:
        self._cache = self._before = ModelCache(self._model)
        return self.step(sequences, drafts)

    def can_draft(self, sequence: Sequence) -> bool:
        num_unread = sequence.length - 1 - self._cache.num_read
        return sequence.num_forwards > 0 and num_unread <= _MOST_UNREAD

    def step(self, rows: abc.Sequence[Sequence | None], drafts: abc.Sequence[Draft]) -> StepLogits:
        [sequence], [draft] = rows, drafts
        assert sequence is not None
        if draft.token_ids:
            self._before = self._cache.copied()
        keep = 1 + len(draft.token_ids)
        logits = self._cache.read([*sequence.token_ids, *draft.token_ids], keep)
        return StepLogits(logits, [slice(keep)])

    def accept(self, sequence: Sequence, start: int, draft: Draft, verdict: Verdict) -> None:
        """Undo the rejected tokens of a draft."""
        if verdict.num_accepted < len(draft.token_ids):
            self._cache = self._before

    def finish(self, sequence: Sequence) -> None:
        """Nothing is stored."""
