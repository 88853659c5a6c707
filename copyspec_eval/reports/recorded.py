"""Runs of our models in their folders: records, manifests, scores, and what is wrong there."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from copyspec_eval import records
from copyspec_eval.errors import DataError
from copyspec_eval.provenance import MANIFEST_VERSION
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.runs import read_run
from copyspec_eval.reports.summary import METRICS
from copyspec_eval.types import DraftSource

Manifest = dict[str, Any]
Attempt = tuple[int, int, DraftSource]
Scores = dict[str, dict[str, float]]
"""`{task: {metric: value}}`."""

OF_TURN = re.compile(r"(.+)_turn(\d+)")
"""A score of one turn, by its name."""

_NO_SCORES = {metric.name for metric in METRICS} | {"answered", "sample_len"}


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What one folder has.

    Attributes:
        folder: see above.
        rows: each turn's last answer, in the order of their keys, without token ids and spans.
        manifests: by run id; none for the runs whose manifest is missing.
        scores: as lm-eval's newest results file has them, by task and way of drafting.
        notes: what is incomplete or old, for people.
    """

    folder: Path
    rows: list[TurnRecord]
    manifests: dict[str, Manifest]
    scores: dict[tuple[str, str], dict[str, float]]
    notes: list[str]


def read_recorded(folder: Path) -> RecordedRun:
    """The run in `folder`.

    Raises:
        DataError: no such folder, no records in it, or its files are broken.
    """
    files = sorted(folder.glob("turns*.jsonl"))
    if not files and not (folder / "manifest.json").exists():
        known = read_run(folder)  # says what is missing, if the folder is no run at all
        raise DataError(f"{known.folder}: no turns*.jsonl; only runs of our models leave them")
    notes: list[str] = []
    last: dict[tuple[Any, ...], TurnRecord] = {}
    shared: dict[Attempt, Attempt] = {}
    for file in files:
        rows = list(records.read(file))
        notes += _about(file, rows)
        # A row that was answered again, by a later run into the folder, counts once.
        last |= {
            (row.task, row.doc_id, row.turn, row.repeat, row.way): _slim(row, shared)
            for row in rows
        }
    if not files:
        notes.append(f"{folder}: no turns.jsonl; the run ended before its first answer")
    manifests = _manifests(folder, notes)
    lacking = sorted({row.run_id for row in last.values()} - set(manifests))
    if lacking:
        notes.append(f"{folder}: no manifest of {', '.join(lacking)}; its conditions are unknown")
    kept = [last[key] for key in sorted(last)]
    return RecordedRun(folder, kept, manifests, _scores(folder, kept, notes), notes)


def _slim(row: TurnRecord, shared: dict[Attempt, Attempt]) -> TurnRecord:
    """What reports read: of 25,000 turns, token ids alone would take most of a gigabyte."""
    plain = replace(row.baseline, token_ids=()) if row.baseline else None
    attempts = tuple(shared.setdefault(attempt, attempt) for attempt in row.attempts)
    return replace(row, token_ids=None, spans=(), attempts=attempts, baseline=plain)


def _about(file: Path, rows: Iterable[TurnRecord]) -> list[str]:
    notes = []
    size = file.stat().st_size
    if not size:
        notes.append(f"{file}: empty; nothing was answered")
    else:
        with file.open("rb") as content:
            content.seek(size - 1)
            if content.read(1) != b"\n":
                notes.append(f"{file}: its last line was cut off by a kill, and is left out")
    older = sorted({r.schema_version for r in rows if r.schema_version < records.SCHEMA_VERSION})
    if older:
        found = ", ".join(map(str, older))
        notes.append(f"{file}: rows of schema {found}; what they do not tell is left empty")
    return notes


def _manifests(folder: Path, notes: list[str]) -> dict[str, Manifest]:
    path = folder / "manifest.json"
    if not path.exists():
        return {}
    try:
        found: list[Manifest] = json.loads(path.read_text(encoding="utf-8"))["runs"]
        manifests = {entry["run_id"]: entry for entry in found}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not a manifest of ours ({error!r}); move it away") from error
    other = sorted({entry.get("schema_version", 0) for entry in found} - {MANIFEST_VERSION})
    if other:
        versions = ", ".join(map(str, other))
        notes.append(f"{path}: schema {versions}; what it does not tell is shown as unknown")
    return manifests


def _scores(folder: Path, rows: Iterable[TurnRecord], notes: list[str]) -> dict[Any, Any]:
    """lm-eval's scores belong to what answered a task last; its files do not tell the drafter."""
    ways: dict[str, dict[str, str]] = {}
    for row in rows:
        of_task = ways.setdefault(row.task, {})
        of_task[row.way] = max(row.run_id, of_task.get(row.way, ""))
    scores = {}
    for task, found in _results(folder).items():
        latest = max(ways.get(task, {"": ""}).items(), key=lambda way: way[1])[0]
        scores[task, latest] = found
        if len(ways.get(task, {})) > 1:
            notes.append(f"{folder}: the scores of {task} there are those of {latest}, the latest")
    return scores


def _results(folder: Path) -> Scores:
    """What lm-eval's results files say of each task; a newer one of the same task counts."""
    scores: Scores = {}
    for path in sorted(folder.rglob("results_*.json"), key=lambda path: path.name):
        try:
            results = json.loads(path.read_text(encoding="utf-8"))["results"]
            scores |= {task: dict(_numbers(of_task)) for task, of_task in results.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}: not lm-eval's results ({error!r}); move it away, or run lm_eval again"
            ) from error
    return scores


def _numbers(of_task: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Scores by name, the filter in brackets if there is one; no errors, counts and times."""
    for key, value in of_task.items():
        name, _, chosen = key.partition(",")
        of_turn = OF_TURN.fullmatch(name)
        if name.endswith("_stderr") or (of_turn[1] if of_turn else name) in _NO_SCORES:
            continue
        if isinstance(value, int | float) and math.isfinite(value):
            yield (name if chosen in ("", "none") else f"{name} ({chosen})"), float(value)
