"""Drafts from a smaller model of the same tokenizer."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.choosing import argmax_tokens
from copyspec_eval.decoding.forward import Part, forward, key_extent
from copyspec_eval.decoding.model_support import input_device
from copyspec_eval.decoding.modules import engine_kernels
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.types import Draft

_CHUNK = 512


class DraftModel:
    """Speculative decoding (Leviathan et al., arXiv 2211.17192) for a batch of rows.

    The draft model has a cache of its own; each sequence knows which tokens its row there holds. A
    rejected token is overwritten.

    It chooses as the target does: the argmax of the processed logits, or, sampling, the token that
    the target's own next random numbers choose from its distribution. Two models that agree then
    draw the same token, so a draft is accepted as it is when decoding greedily, and the tokens
    that come out are those that no draft would have given ("drafter-invariant", Daliri et al.,
    arXiv 2408.07978), each with the target's distribution.

    Args:
        model: accepted by `trial.check_cache`, with the target's tokenizer.
        delta: tokens per draft, the paper's δ.
    """

    def __init__(self, model: PreTrainedModel, delta: int) -> None:
        self.delta = delta
        self._model = model
        self._device = input_device(model)
        self._target_vocabulary = 0
        self._vocabulary = int(model.config.get_text_config().vocab_size)
        self._cache = RowCache(0, 0)

    @contextmanager
    def begin(self, num_rows: int, capacity: int, vocabulary: int) -> Iterator[None]:
        """Be ready for `num_rows` rows of at most `capacity` tokens, of the target's vocabulary."""
        self._target_vocabulary = vocabulary
        self._cache = RowCache(num_rows, key_extent(capacity + self.delta))
        with engine_kernels(self._model, exact=False):
            yield

    def copy_row(self, source: int, target: int) -> None:
        """As `RowCache.copy_row`."""
        self._cache.copy_row(source, target)

    @torch.inference_mode()
    def propose(
        self, rows: abc.Sequence[Sequence | None], drafts: abc.Sequence[Draft]
    ) -> list[Draft]:
        """Each row's draft, or where it is empty and the budget leaves room, the model's own."""
        drafting = {
            row: sequence
            for row, (sequence, draft) in enumerate(zip(rows, drafts, strict=True))
            if sequence and sequence.budget and not draft.token_ids
        }
        drafts = list(drafts)
        if not drafting:
            return drafts
        proposed: dict[int, list[int]] = {row: [] for row in drafting}
        missing = {row: _missing_ids(sequence) for row, sequence in drafting.items()}
        for ahead in range(self.delta):
            logits = self._feed(drafting, missing)
            for row, token in _choices(drafting, proposed, logits, ahead).items():
                proposed[row].append(token)
                missing[row] = [token]
        for row, sequence in drafting.items():
            drafts[row] = Draft(tuple(proposed[row][: sequence.budget]), source="model")
        return drafts

    def _feed(
        self, drafting: Mapping[int, Sequence], missing: Mapping[int, list[int]]
    ) -> torch.Tensor:
        """Feed rows what their cache misses; logits `[rows that draft, target's vocabulary]`."""
        parts = []
        for row, sequence in drafting.items():
            # A token that only the target knows is read as another: a draft may be wrong.
            ids = [min(token, self._vocabulary - 1) for token in missing[row]]
            cached = sequence.draft_cache_ids
            *chunks, last = range(0, len(ids), _CHUNK)
            for start in chunks:
                part = Part(row, len(cached) + start, ids[start : start + _CHUNK])
                forward(self._model, self._cache, [part], logits_to_keep=1)
            parts.append(Part(row, len(cached) + last, ids[last:]))
            cached += missing[row]
        ends = torch.tensor([*accumulate(len(part.token_ids) for part in parts)])
        logits = forward(self._model, self._cache, parts)[(ends - 1).to(self._device)]
        # Models of one tokenizer may have unlike numbers of unused tokens: neither is proposed an
        # id that the target lacks, nor do the target's processors meet logits of another width.
        more = self._target_vocabulary - self._vocabulary
        return F.pad(logits, (0, more), value=-torch.inf)


def _missing_ids(sequence: Sequence) -> list[int]:
    """What the cache misses of prompt and output, at least the last token; rejected tokens go."""
    token_ids, cached = sequence.token_ids, sequence.draft_cache_ids
    agreed = sequence.num_draft_cache_agreed
    while agreed < min(len(cached), len(token_ids)) and cached[agreed] == token_ids[agreed]:
        agreed += 1
    agreed = min(agreed, len(token_ids) - 1)
    del cached[agreed:]
    sequence.num_draft_cache_agreed = agreed
    return token_ids[agreed:]


def _choices(
    drafting: Mapping[int, Sequence],
    proposed: Mapping[int, list[int]],
    logits: torch.Tensor,
    ahead: int,
) -> dict[int, int]:
    """The next token of each row, after those proposed."""
    greedy = [sequence.chooser.is_argmax for sequence in drafting.values()]
    parts = [slice(place, place + is_greedy) for place, is_greedy in enumerate(greedy)]
    argmax = argmax_tokens(logits, parts) if any(greedy) else []
    chosen = {}
    for place, (row, sequence) in enumerate(drafting.items()):
        if greedy[place]:
            [chosen[row]] = argmax[place]
        else:
            prefix_ids = [*sequence.token_ids, *proposed[row]]
            chosen[row] = sequence.chooser.foresee(prefix_ids, logits[place], ahead)
    return chosen
