"""What of a run's rows is shared: figures, and texts only where they are ours to share."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from copyspec_eval import records
from copyspec_eval.errors import DataError
from copyspec_eval.records import TurnRecord

_OURS = "quickstart_"
"""What the names of tasks begin with whose documents were written for this project."""


def share_rows(path: Path) -> None:
    """Take texts of others out of a `turns.jsonl`; a second time changes nothing.

    Raises:
        DataError: a row cannot be read.
    """
    notes: list[str] = []
    rows = records.read(path, notes)
    if notes:
        raise DataError(notes[0])
    path.write_bytes(b"".join(msgspec.json.encode(shared(row)) + b"\n" for row in rows))


def shared(row: TurnRecord) -> TurnRecord:
    """A row without prompt and answer, whose hashes and figures stay, if its document is not ours.

    Answers go, too, for they copy from their prompts.
    """
    if row.task.startswith(_OURS) or row.token_ids is None:
        return row
    baseline = row.baseline and replace(
        row.baseline, token_ids=(), tokens_sha256=tokens_sha256(row.baseline.token_ids)
    )
    texts: dict[str, Any] = {
        "prompt": "",
        "text": "",
        "answer": "",
        "span_characters": (),
        "baseline": baseline,
    }
    return replace(row, token_ids=None, tokens_sha256=tokens_sha256(row.token_ids), **texts)


def tokens_sha256(token_ids: Sequence[int]) -> str:
    """A hash of an answer's tokens, by which anybody can see whether two answers are identical."""
    return hashlib.sha256(json.dumps(list(token_ids)).encode()).hexdigest()
