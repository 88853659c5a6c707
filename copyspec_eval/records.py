"""One flat JSON row per answered turn, appended as it happens: a killed run loses nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from copyspec_eval.errors import DataError

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One answered turn; a row of `turns.jsonl`.

    Attributes:
        run_id: the process that answered; an answer served from lm-eval's cache keeps its own.
        task, doc_id, turn, repeat: which turn this is; `turn` counts from 1, `repeat` from 0.
        category: the document's category, "" where the task has none.
        prompt_sha256: hash of the rendered prompt text, to pair rows of different runs.
        num_forwards: target forwards, the prefill counted as one (it gives the first token).
        num_attempts, num_drafted, num_accepted: forwards with a draft, and the draft tokens in all
            of them that were offered and accepted.
        prefill_seconds, decode_seconds: this turn's share of the engine's time; see `Generation`.
        latency_seconds: wall clock from prefill to last token, neighbours' steps included.
        attempts: `[drafted, accepted]` of every forward with a draft, in order.
        spans: `[start, length, source]` of every copied stretch; see `Span`.
        token_ids, text: the answer as generated, and as handed to lm-eval.
    """

    run_id: str
    task: str
    doc_id: int
    turn: int
    repeat: int
    category: str
    rank: int
    drafter: str
    exact: bool
    batch_size: int
    prompt_sha256: str
    num_prompt_tokens: int
    num_tokens: int
    num_forwards: int
    num_attempts: int
    num_drafted: int
    num_accepted: int
    prefill_seconds: float
    decode_seconds: float
    latency_seconds: float
    finish_reason: str
    attempts: tuple[tuple[int, int], ...]
    spans: tuple[tuple[int, int, int], ...]
    token_ids: tuple[int, ...]
    text: str
    schema_version: int = SCHEMA_VERSION


class RecordedText(str):
    """An answer as lm-eval expects it, a `str`, that also carries its `TurnRecord`.

    It survives lm-eval's filters, pickling into `--use_cache` and gathering over ranks. Backends
    other than ours answer with a plain `str`, so readers use `record_of`.
    """

    record: TurnRecord

    def __new__(cls, text: str, record: TurnRecord) -> RecordedText:
        """Wrap `text`; `record` is kept by reference."""
        self = super().__new__(cls, text)
        self.record = record
        return self

    def __reduce__(self) -> tuple[type[RecordedText], tuple[str, TurnRecord]]:
        """Pickle as text and record."""
        return RecordedText, (str(self), self.record)


def record_of(answer: object) -> TurnRecord | None:
    """The record that `answer` carries, or None for another backend's answer."""
    return answer.record if isinstance(answer, RecordedText) else None


def records_file(folder: Path, rank: int) -> Path:
    """Rows of one rank: `turns.jsonl`, or `turns.rank1.jsonl` … for the ranks beside it."""
    return folder / ("turns.jsonl" if rank == 0 else f"turns.rank{rank}.jsonl")


def append(path: Path, record: TurnRecord) -> None:
    """Append one row in one write, so that a kill leaves whole lines but perhaps the last."""
    row = {"schema_version": record.schema_version} | asdict(record)
    line = json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def read(path: Path) -> Iterator[TurnRecord]:
    """Rows of a `turns.jsonl`, in order; a last line cut off by a kill is left out.

    Raises:
        DataError: a line other than the last is not a row of this schema.
    """
    names = {field.name for field in fields(TurnRecord)}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith("\n"):
                return
            try:
                row: dict[str, Any] = json.loads(line)
                yield TurnRecord(**{name: _freeze(row[name]) for name in names})
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{path}:{number}: not a turn record ({error!r})") from error


def _freeze(value: Any) -> Any:
    return tuple(_freeze(item) for item in value) if isinstance(value, list) else value
