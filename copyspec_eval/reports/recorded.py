"""A run of our models in its folder: records, manifests, scores, and what is wrong there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from copyspec_eval import records
from copyspec_eval.errors import DataError
from copyspec_eval.manifest import RunManifest, read_manifests
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.conversations import Rating, read_ratings
from copyspec_eval.reports.results import read_results
from copyspec_eval.reports.runs import read_run
from copyspec_eval.types import Attempt


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The runs into one folder, or into several folders that are shards of one run.

    `records` has each answer once, without token ids and spans, in the order of runs and keys;
    `scores`, `documents` and `cut_short` are those of `Results`; `notes` are for people.
    """

    folder: Path
    records: list[TurnRecord]
    manifests: dict[str, RunManifest]
    scores: dict[tuple[str, str], dict[str, float]]
    documents: dict[str, int]
    cut_short: dict[str, str]
    notes: list[str]
    ratings: list[Rating] = field(default_factory=list)


def read_recorded(folder: Path) -> RecordedRun:
    """The run, or the runs, in `folder`."""
    files = sorted(folder.glob("turns*.jsonl"))
    if not files and not (folder / "manifest.json").exists():
        read_run(folder)  # reports what is missing, if the folder is no run at all
        raise DataError(f"{folder}: no turns*.jsonl; only runs of our models leave them")
    notes: list[str] = []
    rows: list[TurnRecord] = []
    shared: dict[Attempt, Attempt] = {}
    for file in files:
        in_file = records.read(file, notes)
        if not in_file:
            notes.append(f"{file}: nothing was answered")
        rows += (_slim(row, shared) for row in in_file)
    if not files:
        notes.append(f"{folder}: no turns.jsonl, so there are no answers")
    manifests = read_manifests(folder, notes)
    unknown = sorted({row.run_id for row in rows} - set(manifests))
    if unknown:
        notes.append(f"{folder}: no manifest of {', '.join(unknown)}; its settings are unknown")
    rows.sort(key=lambda row: row.run_id)
    results = read_results(folder, rows, manifests)
    answers = {(results.last_runs[row.run_id], *_key(row)): row for row in rows}
    notes += results.cut_short.values()
    return RecordedRun(
        folder=folder,
        records=sorted(answers.values(), key=lambda row: (row.run_id, *_key(row))),
        manifests=manifests,
        scores=results.scores,
        documents=results.documents,
        cut_short=results.cut_short,
        ratings=read_ratings(folder, notes),
        notes=notes,
    )


def _key(row: TurnRecord) -> tuple[Any, ...]:
    return (row.task, row.drafter or "", row.turn, row.doc_id, row.repeat)


def _slim(row: TurnRecord, shared: dict[Attempt, Attempt]) -> TurnRecord:
    """What reports read: of 25,000 turns, token ids alone would take most of a gigabyte."""
    baseline = replace(row.baseline, token_ids=()) if row.baseline else None
    attempts = tuple(shared.setdefault(attempt, attempt) for attempt in row.attempts)
    return replace(row, token_ids=None, spans=(), attempts=attempts, baseline=baseline)
