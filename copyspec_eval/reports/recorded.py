"""A run of our models in its folder, or in the folders of its shards."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from copyspec_eval import records
from copyspec_eval.errors import DataError
from copyspec_eval.manifest import RunManifest
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.conversations import read_ratings
from copyspec_eval.reports.results import (
    RecordedRun,
    RunScores,
    are_shards,
    read_folder,
    score_name,
)
from copyspec_eval.reports.runs import read_run
from copyspec_eval.types import Attempt


def read_recorded(folder: Path) -> RecordedRun:
    """The run, or the runs, in `folder`: each answer once, without token ids, in order."""
    notes: list[str] = []
    answered = records.read_folder(folder, notes)
    if not answered and not _is_run(folder):
        read_run(folder)  # reports what is missing, if the folder is no run at all
        raise DataError(f"{folder}: no turns*.jsonl; pass the --output_path of a run of copyspec")
    if not answered:
        notes.append(f"{folder}: nothing was answered")
    rows: list[TurnRecord] = []
    shared: dict[Attempt, Attempt] = {}
    for row in answered:
        # What reports read: of 25,000 turns, token ids alone would take most of a gigabyte.
        baseline = replace(row.baseline, token_ids=()) if row.baseline else None
        attempts = tuple(shared.setdefault(attempt, attempt) for attempt in row.attempts)
        rows.append(replace(row, token_ids=None, attempts=attempts, baseline=baseline))
    run = read_folder(folder, rows, notes)
    unknown = sorted({row.run_id for row in rows} - set(run.manifests))
    if unknown:
        notes.append(f"{folder}: no manifest of {', '.join(unknown)}; its settings are unknown")
    answers = {(run.last_runs[row.run_id], *_key(row)): row for row in rows}
    notes += run.cut_short.values()
    in_order = sorted(answers.values(), key=lambda row: (row.run_id, *_key(row)))
    ratings = read_ratings(folder, notes)
    return replace(run, records=in_order, notes=notes, ratings=ratings)


def _key(row: TurnRecord) -> tuple[Any, ...]:
    return (row.task, row.drafter or "", row.turn, row.doc_id, row.repeat)


def read_runs(folders: Iterable[Path]) -> list[RecordedRun]:
    """The runs in `folders` or below them, each once, and shards of one run as that run."""
    runs = [read_recorded(folder) for each in folders for folder in run_folders(each)]
    groups: list[list[RecordedRun]] = []
    for run in {run.folder.resolve(): run for run in runs}.values():
        group = next((group for group in groups if are_shards([*group, run])), None)
        if group:
            group.append(run)
        else:
            groups.append([run])
    return [_merged(group) if len(group) > 1 else group[0] for group in groups]


def run_folders(folder: Path) -> list[Path]:
    """The folder, if it is that of a run; else the folders of runs below it, or a DataError."""
    if folder.is_file():
        raise DataError(f"{folder}: a file, not a run of copyspec; pass its --output_path")
    if not folder.is_dir() or _is_run(folder):
        return [folder]
    if below := records.folders_with_rows(folder):
        return below
    raise DataError(f"{folder}: no run of copyspec here or below; pass its --output_path")


def _is_run(folder: Path) -> bool:
    return (folder / "manifest.json").exists() or any(folder.glob("turns*.jsonl"))


def _merged(shards: list[RecordedRun]) -> RecordedRun:
    """Shards as one run; a score that is no mean over documents is left out, with a note."""
    records = [row for shard in shards for row in shard.records]
    records.sort(key=lambda row: (row.key, row.drafter or ""))
    documents = {task: n for shard in shards for task, n in shard.documents.items()}
    manifests = {run_id: run for shard in shards for run_id, run in shard.manifests.items()}
    samples = _samples(manifests, documents)
    for run_id, manifest in manifests.items():
        evaluation = manifest.spec.evaluation | {"samples": samples}
        manifests[run_id] = replace(manifest, spec=replace(manifest.spec, evaluation=evaluation))
    notes = [note for shard in shards for note in shard.notes]
    scores = _scores(shards, records, notes)
    return RecordedRun(shards[0].folder, records, manifests, scores, documents, {}, {}, notes)


def _samples(manifests: dict[str, RunManifest], documents: dict[str, int]) -> Any:
    """The documents of all shards by task; None if they are all that there are."""
    union: dict[str, set[int]] = {}
    for manifest in manifests.values():
        for task, asked in manifest.spec.evaluation["samples"].items():
            union.setdefault(task, set()).update(asked)
    if all(asked == {*range(documents.get(task, -1))} for task, asked in union.items()):
        return None
    return {task: sorted(asked) for task, asked in sorted(union.items())}


def _scores(shards: list[RecordedRun], records: list[TurnRecord], notes: list[str]) -> RunScores:
    """The mean of each score over the documents of all shards, by the newest run and task."""
    newest = {row.task: row.run_id for row in sorted(records, key=lambda row: row.run_id)}
    by_document: dict[tuple[str, str], dict[int, float]] = {}
    no_means: set[tuple[str, str]] = set()
    for shard in shards:
        logged = read_run(shard.folder).scores
        for (_, task), scores in shard.scores.items():
            by_name = {score_name(key): values for key, values in logged.get(task, {}).items()}
            for name, score in scores.items():
                values = by_name.get(name, {})
                if not values or not math.isclose(score, _mean(values), rel_tol=1e-9):
                    no_means.add((task, name))
                by_document.setdefault((task, name), {}).update(values)
    merged: RunScores = {}
    for (task, name), values in sorted(by_document.items()):
        if (task, name) in no_means:
            notes.append(f"{task}: {name} is not a mean over documents, so shards do not give it")
        else:
            # Log-likelihoods have no rows.
            owner = newest.get(task) or max(newest.values())
            merged.setdefault((owner, task), {})[name] = _mean(values)
    return merged


def _mean(values: Mapping[int, float]) -> float:
    """In order of the documents, as lm-eval sums them."""
    return sum(values[doc_id] for doc_id in sorted(values)) / len(values)
