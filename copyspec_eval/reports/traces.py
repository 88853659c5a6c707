"""Recorded turns, as token ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from copyspec_eval.errors import DataError
from copyspec_eval.sources import read_jsonl

_MOST_TOKENS = 2**20
"""Of a prompt or an answer; a drafter reads them in seconds."""

_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded turn: a prompt and the answer that a model gave to it, as token ids.

    By `id`, of its document, answers of other runs to the same request are found.
    """

    category: str
    turn: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    prompt_ids: Annotated[tuple[_TokenId, ...], msgspec.Meta(max_length=_MOST_TOKENS)]
    answer_ids: Annotated[tuple[_TokenId, ...], msgspec.Meta(min_length=1, max_length=_MOST_TOKENS)]
    id: int | str | None = None


def read_traces(path: Path) -> Iterator[Trace]:
    """The rows of a JSONL file: `category, turn, prompt_ids, answer_ids`, and `id` in some."""
    for where, fields in read_jsonl(path):
        try:
            yield msgspec.convert(fields, Trace)
        except msgspec.ValidationError as error:
            raise DataError(
                f"{where}: not a trace ({error}); give category, turn, prompt_ids, answer_ids"
            ) from error
