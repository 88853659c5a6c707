"""Drafts from a smaller model of the same tokenizer."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.choosing import argmax_tokens
from copyspec_eval.decoding.forward import forward, key_extent
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
        self._cache = RowCache(num_rows, capacity + _CHUNK + self.delta)
        with engine_kernels(self._model, exact=False):
            yield

    def copy_row(self, source: int, target: int) -> None:
        """As `RowCache.copy_row`."""
        self._cache.copy_row(source, target)

    @torch.inference_mode()
    def propose(
        self, rows: abc.Sequence[Sequence | None], drafts: abc.Sequence[Draft]
    ) -> list[Draft]:
        """Each row's draft, or where it is empty and the budget leaves room, the model's own.

        Args:
            rows: what occupies the rows of the step.
            drafts: of each row.
        """
        drafting = [
            sequence if sequence and sequence.budget and not draft.token_ids else None
            for sequence, draft in zip(rows, drafts, strict=True)
        ]
        if not any(drafting):
            return list(drafts)
        proposed: list[list[int]] = [[] for _ in rows]
        missing = [_missing_ids(sequence) if sequence else [] for sequence in drafting]
        for ahead in range(self.delta):
            chosen = _choices(drafting, proposed, self._feed(rows, missing), ahead)
            for tokens, token in zip(proposed, chosen, strict=True):
                tokens += token
            missing = [tokens[-1:] for tokens in proposed]
        return [
            Draft(tuple(tokens[: sequence.budget]), source="model") if sequence else draft
            for sequence, tokens, draft in zip(drafting, proposed, drafts, strict=True)
        ]

    def _feed(
        self, rows: abc.Sequence[Sequence | None], missing: abc.Sequence[list[int]]
    ) -> torch.Tensor:
        """Feed each row what its cache misses; logits after its last token.

        Returns:
            `[rows, target's vocabulary]`.
        """
        cached = [sequence.draft_cache_ids if sequence else [] for sequence in rows]
        last_chunks = list(missing)
        for row, tokens in enumerate(missing):
            for start in range(0, len(tokens) - _CHUNK, _CHUNK):
                chunk, before = tokens[start : start + _CHUNK], len(cached[row])
                forward(
                    self._model,
                    self._cache,
                    row,
                    self._ids([chunk]),
                    before,
                    before + _CHUNK,
                    logits_to_keep=1,
                )
                cached[row] += chunk
                last_chunks[row] = tokens[start + _CHUNK :]
        width = max(map(len, last_chunks))
        ids = self._ids([tokens + [0] * (width - len(tokens)) for tokens in last_chunks])
        starts = [len(token_ids) for token_ids in cached]
        extent = key_extent(max(starts) + width)
        logits = forward(
            self._model,
            self._cache,
            0,
            ids,
            torch.tensor(starts, device=ids.device)[:, None],
            min(extent, self._cache.capacity),
        )
        for token_ids, tokens in zip(cached, last_chunks, strict=True):
            token_ids.extend(tokens)
        last = torch.tensor([max(0, len(t) - 1) for t in last_chunks], device=logits.device)
        last_logits = logits[torch.arange(len(last), device=logits.device), last]
        # Models of one tokenizer may have unlike numbers of unused tokens: neither is proposed an
        # id that the target lacks, nor do the target's processors meet logits of another width.
        more = self._target_vocabulary - self._vocabulary
        return F.pad(last_logits, (0, more), value=-torch.inf)

    def _ids(self, rows: list[list[int]]) -> torch.Tensor:
        ids = torch.tensor(rows, device=self._device)
        # A token that only the target has a weight for is read as another: a draft may be wrong.
        return ids.clamp(max=self._vocabulary - 1)


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
    rows: abc.Sequence[Sequence | None],
    proposed: abc.Sequence[list[int]],
    logits: torch.Tensor,
    ahead: int,
) -> list[list[int]]:
    """The next token of each row that drafts, after those proposed; none for the others."""
    greedy = [sequence is not None and sequence.chooser.is_argmax for sequence in rows]
    parts = [slice(row, row + is_greedy) for row, is_greedy in enumerate(greedy)]
    chosen = argmax_tokens(logits, parts) if any(greedy) else [[] for _ in rows]
    for row, sequence in enumerate(rows):
        if sequence is not None and not greedy[row]:
            prefix_ids = [*sequence.token_ids, *proposed[row]]
            chosen[row] = [sequence.chooser.foresee(prefix_ids, logits[row], ahead)]
    return chosen
