"""Shards of one run: parts that answered different documents, taken together as the whole run.

`lm_eval --samples` makes them, each on a machine of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from copyspec_eval.manifest import RunManifest, RunSpec
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.recorded import RecordedRun
from copyspec_eval.reports.results import score_name
from copyspec_eval.reports.runs import read_run

_Scores = dict[tuple[str, str], dict[str, float]]


def joined(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """The runs, each once, and in place of those that are shards of one, that one."""
    groups: list[list[RecordedRun]] = []
    for run in {run.folder.resolve(): run for run in runs}.values():
        for group in groups:
            if not why_apart([*group, run]):
                group.append(run)
                break
        else:
            groups.append([run])
    return [join(group) if len(group) > 1 else group[0] for group in groups]


def why_apart(runs: Sequence[RecordedRun]) -> str:
    """Why runs are not shards of one; "" if they are."""
    for run in runs:
        if run.cut_short:
            return f"{run.cut_short[0]}; finish it, or leave it out"
        if not run.manifests or {row.run_id for row in run.records} - run.manifests.keys():
            return f"{run.folder}: its settings are unknown"
    of_first, *of_others = [_specs(run) for run in runs]
    for run, specs in zip(runs, [of_first, *of_others], strict=True):
        for spec in specs:
            if not spec.evaluation.get("samples"):
                return f"{run.folder}: no shard, for it was run without --samples"
            if differing := _differing(of_first[0], spec):
                return f"{runs[0].folder}, {run.folder}: no shards of one run: {differing}"
    answered: dict[tuple[Any, ...], RecordedRun] = {}
    for run in runs:
        keys = {_key(row) for row in run.records}
        if twice := answered.keys() & keys:
            task, doc_id, *_ = min(twice)
            other = answered[min(twice)].folder
            return f"{other}, {run.folder}: both answered document {doc_id} of {task}"
        answered |= dict.fromkeys(keys, run)
    return ""


def join(shards: Sequence[RecordedRun]) -> RecordedRun:
    """Shards of one run as that run; its scores are computed anew from those of the documents.

    What is no mean over documents has no score then, and a note says so.

    Raises:
        DataError: a sample log is broken.
    """
    records = sorted((row for shard in shards for row in shard.records), key=_key)
    documents = {task: n for shard in shards for task, n in shard.documents.items()}
    manifests = {run_id: run for shard in shards for run_id, run in shard.manifests.items()}
    samples = _samples(manifests.values(), documents)
    notes = [note for shard in shards for note in shard.notes]
    return RecordedRun(
        folder=shards[0].folder,
        records=records,
        manifests={
            run_id: replace(run, spec=_with_samples(run.spec, samples))
            for run_id, run in manifests.items()
        },
        scores=_scores(shards, records, notes),
        documents=documents,
        cut_short=[],
        notes=notes,
    )


def _key(row: TurnRecord) -> tuple[str, int, int, int, str]:
    return row.task, row.doc_id, row.turn, row.repeat, row.drafter or ""


def _specs(run: RecordedRun) -> list[RunSpec]:
    return [manifest.spec for manifest in run.manifests.values()]


def _with_samples(spec: RunSpec, samples: dict[str, list[int]] | None) -> RunSpec:
    return replace(spec, evaluation=spec.evaluation | {"samples": samples})


def _differing(a: RunSpec, b: RunSpec) -> str:
    """The settings in which two specs differ, but for the documents; "" if in none."""
    shared = a.tasks.keys() & b.tasks.keys()
    of_a, of_b = (
        _with_samples(replace(spec, tasks={}), None).settings()
        | {f"tasks.{task}": spec.tasks[task] for task in shared}
        for spec in (a, b)
    )
    names = sorted(name for name in of_a | of_b if of_a.get(name) != of_b.get(name))
    return ", ".join(f"{name} ({of_a.get(name)} / {of_b.get(name)})" for name in names)


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
) -> _Scores:
    """The mean of each score over the documents of all shards, by the newest run and task."""
    newest: dict[str, str] = {}
    for row in records:
        newest[row.task] = max(row.run_id, newest.get(row.task, ""))
    of_documents: dict[tuple[str, str], dict[int, float]] = {}
    unlike: set[tuple[str, str]] = set()
    for shard in shards:
        values = read_run(shard.folder).scores
        for (_, task), scores in shard.scores.items():
            by_name = {score_name(key): of for key, of in values.get(task, {}).items()}
            for name, score in scores.items():
                of_task = by_name.get(name, {})
                if not of_task or not math.isclose(score, _mean(of_task), rel_tol=1e-9):
                    unlike.add((task, name))
                of_documents.setdefault((task, name), {}).update(of_task)
    joint: _Scores = {}
    for (task, name), values_of in sorted(of_documents.items()):
        if (task, name) in unlike:
            notes.append(f"{task}: {name} is no mean over documents; its shards do not give it")
        else:
            # Log-likelihoods have no rows.
            owner = newest.get(task) or max(newest.values())
            joint.setdefault((owner, task), {})[name] = _mean(values_of)
    return joint


def _mean(values: Mapping[int, float]) -> float:
    """As lm-eval's, in order of the documents."""
    return sum(values[doc_id] for doc_id in sorted(values)) / len(values)
