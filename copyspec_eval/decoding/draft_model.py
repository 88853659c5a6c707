"""Drafts from a smaller model of the same tokenizer."""

from collections import abc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.choosing import argmax_tokens
from copyspec_eval.decoding.forward import Part, forward, key_extent
from copyspec_eval.decoding.modules import engine_kernels
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.types import Draft, first_difference

_CHUNK = 512


class DraftModel:
    """Speculative decoding (Leviathan et al., arXiv 2211.17192) for a batch of rows.

    The draft model chooses as the target does: the argmax of the processed logits, or, sampling,
    the token that the target's next random numbers choose. Models that agree then draw the same
    token, and the output is the one that no draft would have changed ("drafter-invariant", Daliri
    et al., arXiv 2408.07978), with the target's distribution. `delta` is the paper's δ.
    """

    def __init__(self, model: PreTrainedModel, delta: int) -> None:
        self.delta = delta
        self._model = model
        self._target_vocabulary = 0
        self._vocabulary = int(model.config.get_text_config().vocab_size)
        self._cache = RowCache(0, 0)
        self._cached_ids: list[list[int]] = []

    @contextmanager
    def begin(self, num_rows: int, capacity: int, vocabulary: int) -> Iterator[None]:
        """Prepare for `num_rows` rows of at most `capacity` tokens, of the target's vocabulary."""
        self._target_vocabulary = vocabulary
        self._cache = RowCache(num_rows, key_extent(capacity + self.delta))
        self._cached_ids = [[]] * num_rows
        with engine_kernels(self._model, exact=False):
            yield

    @torch.inference_mode()
    def propose(
        self, rows: abc.Sequence[Sequence | None], drafts: abc.Sequence[Draft]
    ) -> list[Draft]:
        """Each row's draft, or where it is empty and the budget leaves room, the model's own."""
        drafting = {
            place: sequence
            for place, (sequence, draft) in enumerate(zip(rows, drafts, strict=True))
            if sequence and sequence.budget and not draft.token_ids
        }
        texts = [sequence.token_ids for sequence in drafting.values()]
        greedy = [sequence.chooser.is_argmax for sequence in drafting.values()]
        for ahead in range(self.delta if drafting else 0):
            logits = self._read([sequence.row for sequence in drafting.values()], texts)
            [argmax] = argmax_tokens(logits, [slice(None)]) if any(greedy) else [[]]
            for place, (sequence, text) in enumerate(zip(drafting.values(), texts, strict=True)):
                peek = sequence.chooser.peek
                text.append(argmax[place] if greedy[place] else peek(text, logits[place], ahead))
        drafts = list(drafts)
        for (place, sequence), text in zip(drafting.items(), texts, strict=True):
            token_ids = text[sequence.length :][: sequence.budget]
            drafts[place] = Draft(tuple(token_ids), source="model")
        return drafts

    def _read(self, rows: abc.Sequence[int], texts: abc.Sequence[list[int]]) -> torch.Tensor:
        """Read texts to their ends; logits `[texts, target's vocabulary]` of what follows each."""
        parts = []
        for row, text in zip(rows, texts, strict=True):
            common = len(cached_ids := self._cached_ids[row])
            if text[:common] != cached_ids:
                common = first_difference(cached_ids, text) or 0
            start = min(common, len(text) - 1)
            # A token that only the target knows is read as another: a draft may be wrong.
            ids = [min(token, self._vocabulary - 1) for token in text[start:]]
            while len(ids) > _CHUNK:
                chunk = Part(row, start, ids[:_CHUNK])
                forward(self._model, self._cache, [chunk], logits_to_keep=1)
                start, ids = start + _CHUNK, ids[_CHUNK:]
            parts.append(Part(row, start, ids))
            self._cached_ids[row] = [*text]
        ends = torch.tensor([*accumulate(len(part.token_ids) for part in parts)])
        logits = forward(self._model, self._cache, parts)
        logits = logits[(ends - 1).to(logits.device)]
        # Models of one tokenizer can be padded to different sizes: no id that the target lacks is
        # proposed, and its processors meet no logits of another width.
        more = self._target_vocabulary - self._vocabulary
        return F.pad(logits, (0, more), value=-torch.inf)
