"""Runs of our models in their folders: records, manifests, scores, and what is wrong there."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from copyspec_eval import records
from copyspec_eval.errors import DataError
from copyspec_eval.manifest import RunManifest, read_manifests
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.runs import BROKEN, read_run
from copyspec_eval.reports.summary import METRICS
from copyspec_eval.types import Attempt

SCORE_OF_TURN = re.compile(r"(.+)_turn(\d+)")
"""A score of one turn, by its name."""

_NO_SCORES = {metric.name for metric in METRICS} | {"answered", "sample_len"}


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What one folder has.

    Attributes:
        folder: see above.
        records: all answers, in the order of their runs and keys, without token ids and spans.
        manifests: by run id; none for the runs whose manifest is missing.
        scores: of a run id and a task, by metric, as lm-eval's results file has them.
        notes: what is incomplete, left out or of another schema, for people.
    """

    folder: Path
    records: list[TurnRecord]
    manifests: dict[str, RunManifest]
    scores: dict[tuple[str, str], dict[str, float]]
    notes: list[str]


def read_recorded(folder: Path) -> RecordedRun:
    """The run, or the runs, in `folder`.

    Raises:
        DataError: no such folder, no records in it, or its manifest or results are broken.
    """
    files = sorted(folder.glob("turns*.jsonl"))
    if not files and not (folder / "manifest.json").exists():
        read_run(folder)  # reports what is missing, if the folder is no run at all
        raise DataError(f"{folder}: no turns*.jsonl; only runs of our models leave them")
    notes: list[str] = []
    answers: dict[tuple[Any, ...], TurnRecord] = {}
    shared: dict[Attempt, Attempt] = {}
    for file in files:
        rows = records.read(file, notes)
        if not rows:
            notes.append(f"{file}: nothing was answered")
        answers |= {_key(row): _slim(row, shared) for row in rows}
    if not files:
        notes.append(f"{folder}: no turns.jsonl; the run ended before its first answer")
    manifests = read_manifests(folder, notes)
    unknown = sorted({row.run_id for row in answers.values()} - set(manifests))
    if unknown:
        notes.append(f"{folder}: no manifest of {', '.join(unknown)}; its settings are unknown")
    ordered = [answers[key] for key in sorted(answers)]
    return RecordedRun(folder, ordered, manifests, _scores(folder, ordered), notes)


def _key(row: TurnRecord) -> tuple[Any, ...]:
    return (row.run_id, row.task, row.drafter or "", row.turn, row.doc_id, row.repeat)


def _slim(row: TurnRecord, shared: dict[Attempt, Attempt]) -> TurnRecord:
    """What reports read: of 25,000 turns, token ids alone would take most of a gigabyte."""
    baseline = replace(row.baseline, token_ids=()) if row.baseline else None
    attempts = tuple(shared.setdefault(attempt, attempt) for attempt in row.attempts)
    return replace(row, token_ids=None, spans=(), attempts=attempts, baseline=baseline)


def _scores(folder: Path, rows: list[TurnRecord]) -> dict[tuple[str, str], dict[str, float]]:
    """Of each run and task; where the run named there answered nothing, of the latest that did."""
    latest: dict[str, str] = {}
    for row in rows:
        latest[row.task] = max(row.run_id, latest.get(row.task, ""))
    scores: dict[tuple[str, str], dict[str, float]] = {}
    for path in sorted(folder.rglob("results_*.json"), key=lambda path: path.name):
        try:
            written = json.loads(path.read_text(encoding="utf-8"))
            run_id = written.get("config", {}).get("copyspec", {}).get("run_id")
            for task, of_task in written["results"].items():
                answered = any((row.run_id, row.task) == (run_id, task) for row in rows)
                owner = run_id if answered else latest.get(task, "")
                scores[owner, task] = dict(_numbers(of_task))
        except BROKEN as error:
            raise DataError(
                f"{path}: not lm-eval's results ({error!r}); move it away, or run lm_eval again"
            ) from error
    return scores


def _numbers(of_task: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Scores by name, the filter in brackets if there is one; no errors, counts and times."""
    for key, value in of_task.items():
        name, _, chosen = key.partition(",")
        of_turn = SCORE_OF_TURN.fullmatch(name)
        if name.endswith("_stderr") or (of_turn[1] if of_turn else name) in _NO_SCORES:
            continue
        if isinstance(value, int | float) and math.isfinite(value):
            yield (name if chosen in ("", "none") else f"{name} ({chosen})"), float(value)
