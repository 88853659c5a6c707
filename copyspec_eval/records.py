"""One JSON row per answered turn, appended as it happens: a killed run loses nothing."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from copyspec_eval import journal
from copyspec_eval.types import Agreement, Attempt, Difference, Span, TurnCounts

SCHEMA_VERSION = 5

_FILES = "turns*.jsonl"
_NUMBERS = [name for name in TurnCounts.__slots__ if name not in ("drafts", "finish_reason")]
_MOST, _LONGEST_DRAFT = 10**9, 2**16
"""Tokens, or seconds, that an answer may have; and tokens of a draft."""


class AnswerKey(NamedTuple):
    """Which answer of a run; `turn` counts from 1, `repeat` from 0."""

    task: str
    doc_id: int
    turn: int
    repeat: int


class SpanCharacters(NamedTuple):
    """A `Span` in characters: the answer's, and those of its source, or twice a `CopyOrigin`."""

    start: int
    end: int
    source_start: int
    source_end: int


Segment = tuple[str] | tuple[str, int, int]
"""A piece of an answer: its text and, if it was copied, its source as in `SpanCharacters`."""


@dataclass(frozen=True, slots=True)
class BaselineTurn:
    """The same turn by the baseline, plain decoding; where the drafted answer first differs."""

    counts: TurnCounts
    token_ids: tuple[int, ...]
    difference: Difference | None
    tokens_sha256: str = ""  # in place of `token_ids`, where rows are shared without texts

    @property
    def agreement(self) -> Agreement:
        return self.difference.agreement if self.difference else "identical"


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One answered turn; a row of `turns.jsonl`. Its settings are those of its run's manifest."""

    run_id: str  # the run that answered, also if lm-eval's cache gave the answer to a later one
    task: str
    doc_id: int
    turn: int
    repeat: int
    category: str
    rank: int
    backend: str
    drafter: str | None  # with its switches: "suffix + store=base"; None for other backends
    batch_size: int
    generation: str  # the request's settings without stop strings, in order of name
    prompt: str  # as the model read it, special tokens included
    prompt_sha256: str  # of the rendered prompt text, to pair rows of different runs
    counts: TurnCounts
    attempts: tuple[Attempt, ...]
    token_ids: tuple[int, ...] | None  # with drafts; None where the backend reports none
    text: str  # as handed to lm-eval; in a paired run it is the baseline's
    answer: str  # the text of `token_ids`, special tokens included
    spans: tuple[Span, ...] = ()
    span_characters: tuple[SpanCharacters, ...] = ()
    baseline: BaselineTurn | None = None
    tokens_sha256: str = ""  # as the baseline's
    schema_version: int = SCHEMA_VERSION

    @property
    def key(self) -> AnswerKey:
        return AnswerKey(self.task, self.doc_id, self.turn, self.repeat)

    @property
    def answer_ids(self) -> tuple[int, ...] | None:
        return self.baseline.token_ids if self.baseline else self.token_ids


def segments(answer: str, places: Iterable[SpanCharacters]) -> list[Segment]:
    """The answer with drafts in copied and generated pieces, none of them empty.

    >>> segments("abcd", [SpanCharacters(1, 3, source_start=5, source_end=7)])
    [('a',), ('bc', 5, 7), ('d',)]
    """
    pieces, done = list[Segment](), 0
    for start, end, source_start, source_end in places:
        pieces += [(answer[done:start],), (answer[start:end], source_start, source_end)]
        done = end
    return [piece for piece in [*pieces, (answer[done:],)] if piece[0]]


class RecordedText(str):
    """An answer as a `str` with its `TurnRecord`, also through filters, pickles and ranks."""

    record: TurnRecord

    def __new__(cls, text: object, record: TurnRecord | None = None) -> "RecordedText":
        """A plain `str` without a record: lm-eval gives a reference answer the answer's type."""
        if record is None:
            return str(text)  # type: ignore[return-value]
        self = super().__new__(cls, text)
        self.record = record
        return self

    def __reduce__(self) -> "tuple[type[RecordedText], tuple[str, TurnRecord]]":
        return RecordedText, (str(self), self.record)


def record_of(answer: object) -> TurnRecord | None:
    """The record that `answer` carries, or None for another backend's answer."""
    return answer.record if isinstance(answer, RecordedText) else None


def records_file(folder: Path, rank: int) -> Path:
    """Rows of one rank: `turns.jsonl`, or `turns.rank1.jsonl` … for the ranks beside it."""
    return folder / ("turns.jsonl" if rank == 0 else f"turns.rank{rank}.jsonl")


def folders_with_rows(folder: Path) -> list[Path]:
    """Those of `folder` and the folders below it that have files of rows."""
    return sorted({file.parent for file in folder.rglob(_FILES)})


def append(path: Path, record: TurnRecord) -> None:
    journal.append(path, msgspec.json.encode(record))


def read_folder(folder: Path, notes: list[str]) -> list[TurnRecord]:
    """The rows in a folder, of all ranks, in order of their runs; notes as `read`."""
    files = sorted(folder.glob(_FILES))
    rows = itertools.chain.from_iterable(read(file, notes) for file in files)
    return sorted(rows, key=lambda row: row.run_id)


def read(path: Path, notes: list[str]) -> list[TurnRecord]:
    """The rows of a `turns.jsonl`, in order; a line in `notes` names those that cannot be read."""
    rows: list[TurnRecord] = []
    skipped: dict[int, str] = {}
    decoder = msgspec.json.Decoder(TurnRecord)
    for number, line in journal.lines(path):
        try:
            row = decoder.decode(line)
            if row.schema_version != SCHEMA_VERSION:
                raise ValueError(f"schema {row.schema_version}, not {SCHEMA_VERSION}")
            _check_numbers(row)
            rows.append(row)
        except (ValueError, RecursionError) as error:
            skipped[number] = str(error)
    if skipped:
        numbers = ", ".join(map(str, list(skipped)[:10])) + (", …" if len(skipped) > 10 else "")
        why = next(iter(skipped.values()))
        notes.append(f"{path}: unreadable rows left out: {len(skipped)}, on line {numbers} ({why})")
    return rows


def _check_numbers(row: TurnRecord) -> None:
    """Raise a ValueError for a number that no run has counted or timed."""
    for counts in (row.counts, row.baseline.counts if row.baseline else None):
        for name in _NUMBERS if counts else ():
            value = getattr(counts, name)
            if value is not None and not 0 <= value <= _MOST:
                raise ValueError(f"{name} is {value}")
        for drafts in ((counts and counts.drafts) or {}).values():
            if not 0 <= drafts.num_accepted <= drafts.num_drafted <= _MOST:
                raise ValueError(f"{drafts.num_accepted} of {drafts.num_drafted} accepted")
    for attempt in row.attempts:
        if not 0 <= attempt.num_accepted <= attempt.num_drafted <= _LONGEST_DRAFT:
            raise ValueError(f"{attempt.num_accepted} of {attempt.num_drafted} accepted")
