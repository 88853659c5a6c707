"""What of a run's rows is shared: figures, and texts only where they are ours to share."""

from dataclasses import replace
from pathlib import Path

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
    """A row without prompt and answer, whose hash and figures stay, if its document is not ours.

    Answers go, too, for they copy from their prompts.
    """
    if row.task.startswith(_OURS):
        return row
    baseline = row.baseline and replace(row.baseline, token_ids=())
    return replace(
        row, prompt="", token_ids=None, text="", answer="", span_characters=(), baseline=baseline
    )
