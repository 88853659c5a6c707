"""A smaller model of the same tokenizer that says the next tokens first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.choosing import TokenChooser, argmax_tokens
from copyspec_eval.decoding.serving import forward, served
from copyspec_eval.types import Draft

_CHUNK = 512
_EXTENT = 64


@dataclass(frozen=True, slots=True)
class Asked:
    """A row that wants a draft: its text so far, and how its tokens are chosen."""

    text: Sequence[int]
    chooser: TokenChooser
    max_tokens: int


class DraftModel:
    """Speculative decoding (Leviathan et al., arXiv 2211.17192) for a batch of rows.

    The draft model has a cache of its own. What it was fed stays there as long as it is the row's
    text; a rejected token's place is written over.

    It chooses as the target does: the argmax of the processed logits, or, sampling, the token that
    the target's own next random numbers choose from its distribution. Two models that agree then
    draw the same token, so a draft is accepted as it is when decoding greedily, and the tokens
    that come out are those that no draft would have given ("drafter-invariant", Daliri et al.,
    arXiv 2408.07978), each with the target's distribution.

    Args:
        model: accepted by `serving.check_config`, with the target's tokenizer.
        delta: tokens per draft, the paper's δ.
    """

    def __init__(self, model: PreTrainedModel, delta: int) -> None:
        self.delta = delta
        self._model = model
        self._vocabulary = int(model.config.get_text_config().vocab_size)
        self._cache = RowCache(0, 0)
        self._fed: list[list[int]] = []
        self._sure: list[int] = []

    @contextmanager
    def begin(self, num_rows: int, capacity: int) -> Iterator[None]:
        """Be ready for `num_rows` rows of at most `capacity` tokens."""
        self._cache = RowCache(num_rows, capacity + _CHUNK + self.delta)
        self._fed = [[] for _ in range(num_rows)]
        self._sure = [0] * num_rows
        with served(self._model, exact=False):
            yield

    def clear_row(self, place: int) -> None:
        """Forget a row; another request has its place now."""
        self._fed[place], self._sure[place] = [], 0

    def copy_row(self, source: int, target: int) -> None:
        """As `RowCache.copy_row`."""
        self._cache.copy_row(source, target)
        self._fed[target], self._sure[target] = list(self._fed[source]), self._sure[source]

    @torch.inference_mode()
    def propose(self, asked: Sequence[Asked | None]) -> list[Draft]:
        """A draft for each row of the step that asks for one."""
        if not any(asked):
            return [Draft() for _ in asked]
        lacking = [self._lacking(place, one) for place, one in enumerate(asked)]
        said: list[list[int]] = [[] for _ in asked]
        for ahead in range(self.delta):
            logits = self._feed(lacking)
            for place, one in enumerate(asked):
                if one is not None:
                    said[place].append(_choice(one, said[place], logits[place], ahead))
            lacking = [tokens[-1:] for tokens in said]
        return [
            Draft(tuple(tokens[: one.max_tokens]), source="model") if one else Draft()
            for one, tokens in zip(asked, said, strict=True)
        ]

    def _lacking(self, place: int, asked: Asked | None) -> list[int]:
        """What the cache lacks of a row's text, at least its last token; rejected tokens go."""
        if asked is None:
            return []
        text, fed = asked.text, self._fed[place]
        agreed = self._sure[place]
        while agreed < min(len(fed), len(text)) and fed[agreed] == text[agreed]:
            agreed += 1
        agreed = min(agreed, len(text) - 1)
        del fed[agreed:]
        self._sure[place] = agreed
        return list(text[agreed:])

    def _feed(self, lacking: Sequence[list[int]]) -> torch.Tensor:
        """Feed tokens to the rows that lack some; logits `[rows, vocabulary]` after them."""
        parts = list(lacking)
        for place, tokens in enumerate(lacking):
            for start in range(0, len(tokens) - _CHUNK, _CHUNK):
                chunk, before = tokens[start : start + _CHUNK], len(self._fed[place])
                forward(
                    self._model,
                    self._cache,
                    place,
                    self._ids([chunk]),
                    before,
                    before + _CHUNK,
                    logits_to_keep=1,
                )
                self._fed[place] += chunk
                parts[place] = tokens[start + _CHUNK :]
        width = max(map(len, parts))
        ids = self._ids([tokens + [0] * (width - len(tokens)) for tokens in parts])
        starts = [len(self._fed[place]) for place in range(len(parts))]
        extent = -(-(max(starts) + width) // _EXTENT) * _EXTENT
        logits = forward(
            self._model,
            self._cache,
            0,
            ids,
            torch.tensor(starts, device=ids.device)[:, None],
            min(extent, self._cache.capacity),
        )
        for place, tokens in enumerate(parts):
            self._fed[place] += tokens
        last = torch.tensor([max(0, len(tokens) - 1) for tokens in parts], device=logits.device)
        return logits[torch.arange(len(parts), device=logits.device), last]

    def _ids(self, rows: list[list[int]]) -> torch.Tensor:
        ids = torch.tensor(rows, device=self._model.device)
        # What only the target has a weight for is read as any token: a draft may be wrong.
        return ids.clamp(max=self._vocabulary - 1)


def _choice(asked: Asked, said: Sequence[int], logits: torch.Tensor, ahead: int) -> int:
    if asked.chooser.is_argmax:
        return argmax_tokens(logits[None, None])[0][0]
    return asked.chooser.foresee([*asked.text, *said], logits, ahead)
