"""A run of our models in its folder, or in the folders of its shards."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from copyspec_eval import records
from copyspec_eval.errors import DataError
from copyspec_eval.manifest import RunManifest, RunSpec, read_manifests
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.conversations import Rating, read_ratings
from copyspec_eval.reports.runs import Run, RunScores, Scores, read_results, read_run, score_name
from copyspec_eval.types import Attempt

_RUN_FILES = ("turns*.jsonl", "manifest.json")


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The runs into one folder, or the run whose shards are in several folders."""

    folder: Path  # that of the first shard
    records: list[TurnRecord]  # each answer once, without token ids, in order
    manifests: dict[str, RunManifest]
    scores: RunScores  # this and the following two as in `Results`
    documents: dict[str, int]
    cut_short: dict[str, str]
    notes: list[str]  # what is incomplete, left out or of another schema, for people
    ratings: list[Rating] = field(default_factory=list)


def read_recorded(folder: Path) -> RecordedRun:
    """The run, or the runs, in `folder`."""
    files = sorted(folder.glob("turns*.jsonl"))
    if not files and not (folder / "manifest.json").exists():
        read_run(folder)  # reports what is missing, if the folder is no run at all
        raise DataError(f"{folder}: no turns*.jsonl; pass the --output_path of a run of copyspec")
    notes: list[str] = []
    rows: list[TurnRecord] = []
    shared: dict[Attempt, Attempt] = {}
    for file in files:
        in_file = records.read(file, notes)
        if not in_file:
            notes.append(f"{file}: nothing was answered")
        for row in in_file:
            # What reports read: of 25,000 turns, token ids alone would take most of a gigabyte.
            baseline = replace(row.baseline, token_ids=()) if row.baseline else None
            attempts = tuple(shared.setdefault(attempt, attempt) for attempt in row.attempts)
            rows.append(replace(row, token_ids=None, attempts=attempts, baseline=baseline))
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
    in_order = sorted(answers.values(), key=lambda row: (row.run_id, *_key(row)))
    figures = results.scores, results.documents, results.cut_short
    return RecordedRun(folder, in_order, manifests, *figures, notes, read_ratings(folder, notes))


def _key(row: TurnRecord) -> tuple[Any, ...]:
    return (row.task, row.drafter or "", row.turn, row.doc_id, row.repeat)


def read_runs(folders: Iterable[Path]) -> list[RecordedRun]:
    """The runs in `folders` or below them, each once, and shards of one run as that run."""
    runs = [read_recorded(folder) for each in folders for folder in run_folders(each)]
    groups: list[list[RecordedRun]] = []
    for run in {run.folder.resolve(): run for run in runs}.values():
        group = next((group for group in groups if _are_shards([*group, run])), None)
        if group:
            group.append(run)
        else:
            groups.append([run])
    return [_merged(group) if len(group) > 1 else group[0] for group in groups]


def run_folders(folder: Path) -> list[Path]:
    """The folder, if it is that of a run; else the folders of runs below it, or a DataError."""
    if folder.is_file():
        raise DataError(f"{folder}: a file, not a run of copyspec; pass its --output_path")
    if not folder.is_dir() or any(any(folder.glob(pattern)) for pattern in _RUN_FILES):
        return [folder]
    if below := sorted({path.parent for path in folder.rglob(_RUN_FILES[0])}):
        return below
    raise DataError(f"{folder}: no run of copyspec here or below; pass its --output_path")


def read_whole(folder: Path) -> Run:
    """The run in `folder` as `read_run` has it; of shards below it, all answers and scores."""
    places = sorted({path.parent for path in folder.rglob(_RUN_FILES[0])})
    try:
        is_split = len(places) > 1 and _are_shards([read_recorded(place) for place in places])
    except DataError:  # `read_run` says what it can do without
        is_split = False
    if not is_split:
        return read_run(folder)
    shards = [read_run(place) for place in places]
    answers = {key: answer for shard in shards for key, answer in shard.answers.items()}
    scores: Scores = {}
    for shard in shards:
        for task, by_metric in shard.scores.items():
            for metric, values in by_metric.items():
                scores.setdefault(task, {}).setdefault(metric, {}).update(values)
    notes = tuple(note for shard in shards for note in shard.notes)
    return replace(shards[0], folder=folder, answers=answers, scores=scores, notes=notes)


def _are_shards(runs: Sequence[RecordedRun]) -> bool:
    """Whether they have the same settings, and each answered documents that no other one did."""
    for run in runs:
        unknown = {row.run_id for row in run.records} - run.manifests.keys()
        if run.cut_short or unknown or not run.manifests:
            return False
    specs = [manifest.spec for run in runs for manifest in run.manifests.values()]
    if not all(spec.evaluation.get("samples") and _are_alike(specs[0], spec) for spec in specs):
        return False
    answered = [{(*row.key, row.drafter) for row in run.records} for run in runs]
    return len(set().union(*answered)) == sum(map(len, answered))


def _are_alike(a: RunSpec, b: RunSpec) -> bool:
    """Whether two specs have the same settings except for the documents."""
    shared = a.tasks.keys() & b.tasks.keys()

    def rest(spec: RunSpec) -> RunSpec:
        tasks = {task: spec.tasks[task] for task in shared}
        return replace(spec, tasks=tasks, evaluation=spec.evaluation | {"samples": None})

    return rest(a) == rest(b)


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
    return RecordedRun(shards[0].folder, records, manifests, scores, documents, {}, notes)


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
