"""One flat JSON row per answered turn, appended as it happens: a killed run loses nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from copyspec_eval.errors import DataError
from copyspec_eval.types import Agreement, Difference, DraftSource

SCHEMA_VERSION = 4

Segment = tuple[str, int, int]
"""A piece of an answer: its text, and where its source starts and ends in the characters of prompt
and answer together; -1 for the model's own, -2 for a copy from an earlier answer of the run."""


@dataclass(frozen=True, slots=True)
class BaselineTurn:
    """The same turn by plain one-token decoding, in a paired run.

    Attributes:
        token_ids: the baseline's answer.
        agreement: how the drafted answer compares with it.
        difference: where they part; None if identical.

    The others are as in `TurnRecord`.
    """

    num_tokens: int
    seconds: float
    prefill_seconds: float
    decode_seconds: float
    latency_seconds: float
    finish_reason: str
    token_ids: tuple[int, ...]
    agreement: Agreement
    difference: Difference | None


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One answered turn; a row of `turns.jsonl`.

    What a stock backend does not tell is None.

    Attributes:
        run_id: the process that answered; an answer served from lm-eval's cache keeps its own.
        task, doc_id, turn, repeat: which turn this is; `turn` counts from 1, `repeat` from 0.
        category: the document's category, "" where the task has none.
        backend: "copyspec", or the stock lm-eval model that was timed.
        drafter, store, tree, draft_model, exact: as in `--model_args`.
        batch_size: rows decoded side by side.
        prompt_sha256: hash of the rendered prompt text, to pair rows of different runs.
        num_forwards: target forwards, the prefill counted as one.
        num_prefill_tokens: tokens that the prefill gave; see `Generation`.
        num_attempts, num_drafted, num_accepted: forwards with a draft, and the draft tokens in all
            of them that were offered and accepted.
        num_copied: accepted draft tokens that were copied, not said by a draft model.
        seconds: this turn's share of the wall clock; shares of all turns add up to it.
        prefill_seconds, decode_seconds: the parts of `seconds`; see `Generation`.
        latency_seconds: wall clock from prefill to last token, neighbours' steps included.
        attempts: `[drafted, accepted, source]` of every forward with a draft, in order.
        spans: `[start, length, source]` of every copied stretch; see `Span`.
        token_ids: the answer as generated, with drafts.
        text: the answer as handed to lm-eval; in a paired run it is the baseline's.
        generation: settings of the request, `name=value, …` in order of name, but its stop strings.
        prompt: the prompt as the model read it, special tokens included.
        segments: the answer with drafts as the model gave it, in pieces; see `Segment`.
        baseline: the baseline's side of a paired run, else None.
    """

    run_id: str
    task: str
    doc_id: int
    turn: int
    repeat: int
    category: str
    rank: int
    backend: str
    drafter: str | None
    store: bool
    tree: bool
    draft_model: str | None
    exact: bool | None
    batch_size: int
    prompt_sha256: str
    num_prompt_tokens: int | None
    num_tokens: int | None
    num_forwards: int | None
    num_prefill_tokens: int | None
    num_attempts: int | None
    num_drafted: int | None
    num_accepted: int | None
    num_copied: int | None
    seconds: float
    prefill_seconds: float | None
    decode_seconds: float | None
    latency_seconds: float
    finish_reason: str | None
    attempts: tuple[tuple[int, int, DraftSource], ...]
    spans: tuple[tuple[int, int, int], ...]
    token_ids: tuple[int, ...] | None
    text: str
    generation: str | None = None
    prompt: str | None = None
    segments: tuple[Segment, ...] = ()
    baseline: BaselineTurn | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def way(self) -> str:
        """How the answer was drafted: "suffix", "copyspec + store", …; or the stock backend."""
        extras = {"store": self.store, "tree": self.tree, "draft model": self.draft_model}
        return " + ".join(
            [self.drafter or self.backend, *(name for name in extras if extras[name])]
        )

    @property
    def answer_ids(self) -> tuple[int, ...] | None:
        """Tokens of the answer that was handed to lm-eval."""
        return self.baseline.token_ids if self.baseline else self.token_ids


class RecordedText(str):
    """An answer as lm-eval expects it, a `str`, that also carries its `TurnRecord`.

    It survives lm-eval's filters, pickling into `--use_cache` and gathering over ranks. Backends
    other than ours answer with a plain `str`, so readers use `record_of`.
    """

    record: TurnRecord

    def __new__(cls, text: object, record: TurnRecord | None = None) -> RecordedText:
        """Wrap `text`; `record` is kept by reference.

        A plain `str` without a record: lm-eval turns a reference answer into the answer's type.
        """
        if record is None:
            return str(text)  # type: ignore[return-value]
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
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith("\n"):
                return
            try:
                yield _turn_record(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{path}:{number}: not a turn record ({error!r})") from error


def _turn_record(row: dict[str, Any]) -> TurnRecord:
    version = row["schema_version"]
    if version not in (SCHEMA_VERSION, *_ADDED_SINCE):
        raise ValueError(f"schema_version {version}, this is {SCHEMA_VERSION}")
    for older in sorted(_ADDED_SINCE):
        if version <= older:
            row = _ADDED_SINCE[older](row) | row
    if version <= 2:
        row["attempts"] = [[*attempt, "context"] for attempt in row["attempts"]]
    record: TurnRecord = _built(TurnRecord, row)
    return record


# What a row of an older schema would say, had it been asked.
_ADDED_SINCE: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    2: lambda row: {
        "store": False,
        "tree": False,
        "draft_model": None,
        "num_prefill_tokens": None if row["num_tokens"] is None else 1,
        "num_copied": row["num_accepted"],
    },
    3: lambda row: {"generation": None, "prompt": None, "segments": []},
}


def _built(kind: type[Any], row: dict[str, Any]) -> Any:
    """`kind` from `row`, and the dataclasses inside it; lists become tuples."""
    inside = {"baseline": BaselineTurn, "difference": Difference}
    values = {field.name: row[field.name] for field in fields(kind)}
    return kind(
        **{
            name: _built(inside[name], value) if name in inside and value else _freeze(value)
            for name, value in values.items()
        }
    )


def _freeze(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    # Thousands of numbers a row, of which none needs a look of its own.
    nested = bool(value) and isinstance(value[0], list)
    return tuple(map(_freeze, value)) if nested else tuple(value)
