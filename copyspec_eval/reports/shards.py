"""Shards of one run: parts that answered different documents, read or written as the whole run.

`lm_eval --samples` makes them, each on its own machine.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from copyspec_eval import journal, records
from copyspec_eval.errors import DataError
from copyspec_eval.manifest import RunManifest, RunSpec, write_manifest
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.recorded import RecordedRun, read_recorded
from copyspec_eval.reports.results import BROKEN, score_name
from copyspec_eval.reports.runs import SampleLog, newest_logs, read_run
from copyspec_eval.reports.table import run_figures

_RUN_FILES = ("turns*.jsonl", "manifest.json")


def read_runs(folders: Iterable[Path]) -> list[RecordedRun]:
    """The runs in `folders` or below them, each once, and shards of one run as that run.

    Raises:
        DataError: a folder has no run; or as `read_recorded`.
    """
    runs = [read_recorded(folder) for each in folders for folder in _run_folders(each)]
    groups: list[list[RecordedRun]] = []
    for run in {run.folder.resolve(): run for run in runs}.values():
        for group in groups:
            if not merge_conflict([*group, run]):
                group.append(run)
                break
        else:
            groups.append([run])
    return [_merged(group) if len(group) > 1 else group[0] for group in groups]


def _run_folders(folder: Path) -> list[Path]:
    """The folder, if it is that of a run; else the folders of runs below it."""
    is_run = any(True for pattern in _RUN_FILES for _ in folder.glob(pattern))
    if folder.is_dir() and not is_run:
        below = sorted({path.parent for path in folder.rglob(_RUN_FILES[0])})
        if not below:
            raise DataError(f"{folder}: no run of copyspec here or below; pass its --output_path")
        return below
    return [folder]


def merge_conflict(runs: Sequence[RecordedRun]) -> str:
    """Why runs are not shards of one; "" if they are."""
    for run in runs:
        if run.cut_short:
            return f"{next(iter(run.cut_short.values()))}; finish it, or leave it out"
        if not run.manifests or {row.run_id for row in run.records} - run.manifests.keys():
            return f"{run.folder}: its settings are unknown"
    first = next(iter(runs[0].manifests.values())).spec
    for run in runs:
        for manifest in run.manifests.values():
            if not manifest.spec.evaluation.get("samples"):
                return f"{run.folder}: not a shard: it was run without --samples"
            if differing := _differing(first, manifest.spec):
                folders = f"{runs[0].folder}, {run.folder}"
                return f"{folders}: not shards of one run: they differ in {differing}"
    answered: dict[tuple[object, ...], Path] = {}
    for run in runs:
        keys = {(*row.key, row.drafter or "") for row in run.records}
        if twice := answered.keys() & keys:
            task, doc_id, *_ = min(twice)
            other = answered[min(twice)]
            return f"{other}, {run.folder}: both answered document {doc_id} of {task}"
        answered |= dict.fromkeys(keys, run.folder)
    return ""


def _differing(a: RunSpec, b: RunSpec) -> str:
    """The settings in which two specs differ, except for the documents."""
    shared = a.tasks.keys() & b.tasks.keys()
    settings_a, settings_b = (
        replace(spec, tasks={}, evaluation=spec.evaluation | {"samples": None}).settings()
        | {f"tasks.{task}": spec.tasks[task] for task in shared}
        for spec in (a, b)
    )
    return ", ".join(
        f"{name} ({settings_a.get(name)} / {settings_b.get(name)})"
        for name in sorted(settings_a | settings_b)
        if settings_a.get(name) != settings_b.get(name)
    )


def _merged(shards: Sequence[RecordedRun]) -> RecordedRun:
    """Shards as one run; its scores are computed again from the scores of the documents.

    A score that is not a mean over documents is left out, and a note says so.
    """
    records = [row for shard in shards for row in shard.records]
    records.sort(key=lambda row: (row.key, row.drafter or ""))
    documents = {task: n for shard in shards for task, n in shard.documents.items()}
    manifests = {run_id: run for shard in shards for run_id, run in shard.manifests.items()}
    samples = _samples(manifests.values(), documents)
    for run_id, manifest in manifests.items():
        evaluation = manifest.spec.evaluation | {"samples": samples}
        manifests[run_id] = replace(manifest, spec=replace(manifest.spec, evaluation=evaluation))
    notes = [note for shard in shards for note in shard.notes]
    scores = _scores(shards, records, notes)
    return RecordedRun(shards[0].folder, records, manifests, scores, documents, {}, notes)


def _samples(
    manifests: Iterable[RunManifest], documents: Mapping[str, int]
) -> dict[str, list[int]] | None:
    """The documents of all shards by task; None if they are all that there are."""
    union: dict[str, set[int]] = {}
    for manifest in manifests:
        for task, asked in manifest.spec.evaluation["samples"].items():
            union.setdefault(task, set()).update(asked)
    if all(asked == {*range(documents.get(task, -1))} for task, asked in union.items()):
        return None
    return {task: sorted(asked) for task, asked in sorted(union.items())}


def _scores(
    shards: Sequence[RecordedRun], records: Sequence[TurnRecord], notes: list[str]
) -> dict[tuple[str, str], dict[str, float]]:
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
    merged: dict[tuple[str, str], dict[str, float]] = {}
    for (task, name), values in sorted(by_document.items()):
        if (task, name) in no_means:
            notes.append(f"{task}: {name} is no mean over documents; its shards do not give it")
        else:
            # Log-likelihoods have no rows.
            owner = newest.get(task) or max(newest.values())
            merged.setdefault((owner, task), {})[name] = _mean(values)
    return merged


def _mean(values: Mapping[int, float]) -> float:
    # In order of the documents, as lm-eval sums them.
    return sum(values[doc_id] for doc_id in sorted(values)) / len(values)


def write_merged(folders: Sequence[Path], out: Path) -> list[str]:
    """Write the run whose shards are in `folders` to `out`: rows, manifests, logs, results.

    Returns:
        notes, for people.

    Raises:
        DataError: see `merge_conflict`; something in a shard is broken; `out` is not empty, or
            cannot be written. Nothing is left there then.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise DataError(f"{out}: is there already; choose another folder")
    shards = [read_recorded(folder) for folder in folders]
    if reason := merge_conflict(shards):
        raise DataError(reason)
    run = _merged(shards)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
            whole = Path(temporary) / "whole"
            _write(whole, run, folders)
            whole.rename(out)
    except OSError as error:
        raise DataError(
            f"{out}: cannot be written ({error.strerror}); free space there, or choose another"
        ) from error
    return run.notes


def _write(whole: Path, run: RecordedRun, folders: Sequence[Path]) -> None:
    files = [file for folder in folders for file in sorted(folder.glob("turns*.jsonl"))]
    rows = [row for file in files for row in records.read(file, [])]
    rows.sort(key=lambda row: (row.key, row.run_id))
    for row in rows:
        records.append(records.records_file(whole, rank=0), row)
    for manifest in run.manifests.values():
        write_manifest(whole, manifest)
    logs = [log for folder in folders for log in newest_logs(folder)]
    if not logs:
        return
    newest = max(logs, key=lambda log: log.date)
    place = whole / newest.path.parent.name
    place.mkdir()
    for task in sorted({log.task for log in logs}):
        lines = [line for log in logs if log.task == task for _, line in journal.lines(log.path)]
        lines.sort(key=lambda line: int(json.loads(line)["doc_id"]))
        path = place / f"samples_{task}_{newest.date}.jsonl"
        path.write_bytes(b"".join(line + b"\n" for line in lines))
    results = json.dumps(_results(whole, run, newest), indent=2)
    (place / f"results_{newest.date}.json").write_text(results, encoding="utf-8")


def _results(whole: Path, run: RecordedRun, newest: SampleLog) -> dict[str, Any]:
    """The newest results file, with the figures of all shards."""
    path = next(newest.path.parent.glob(f"*_{newest.date}.json"))
    last = max(row.run_id for row in run.records)
    try:
        written: dict[str, Any] = journal.parsed(journal.read(path))
        written["config"]["copyspec"] = {"run_id": last, "figures": run_figures(run.records)}
        written["config"]["samples"] = run.manifests[last].spec.evaluation["samples"]
    except BROKEN as error:
        raise DataError(f"{path}: not lm-eval's results ({error!r}); run it again") from error
    for name in ("groups", "group_subtasks"):  # means over several tasks
        written.pop(name, None)
    written["results"], written["n-samples"] = {}, {}
    scores = {task: by_name for (_, task), by_name in run.scores.items()}
    for task, values in read_run(whole).scores.items():
        effective = len({row.doc_id for row in run.records if row.task == task})
        original = run.documents.get(task)
        written["n-samples"][task] = {"original": original, "effective": effective}
        written["results"][task] = {"alias": task, "sample_len": effective}
        written["results"][task] |= _with_errors(scores.get(task, {}), values)
    return written


def _with_errors(
    scores: Mapping[str, float], values: Mapping[str, Mapping[int, float]]
) -> Iterator[tuple[str, float]]:
    """Each score, and its standard error where there is more than one document."""
    for key in sorted(values):
        if score_name(key) in scores:
            yield key, scores[score_name(key)]
            by_document = list(values[key].values())
            if len(by_document) > 1:
                error = statistics.stdev(by_document) / len(by_document) ** 0.5
                yield key.replace(",", "_stderr,"), error
