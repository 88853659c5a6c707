"""Shards of one run, written as that run would have left itself."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from copyspec_eval import journal, records
from copyspec_eval.errors import DataError
from copyspec_eval.manifest import write_manifest
from copyspec_eval.reports.recorded import RecordedRun, read_recorded
from copyspec_eval.reports.results import BROKEN, score_key
from copyspec_eval.reports.runs import SampleLog, newest_logs, read_run
from copyspec_eval.reports.shards import join, why_apart
from copyspec_eval.reports.table import run_figures


def merge_shards(folders: Sequence[Path], out: Path) -> list[str]:
    """Write what `folders` have into `out`: rows, manifests, sample logs, results.

    Rates follow from the rows, as ever; scores are means over the documents of all shards.

    Args:
        folders: of the shards; see `shards.why_apart` for what they must have in common.
        out: is not there yet, or empty.

    Returns:
        notes, for people.

    Raises:
        DataError: they are no shards of one run, something in them is broken, or `out` cannot be
            written; nothing is left there then.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise DataError(f"{out}: is there already; choose another folder")
    shards = [read_recorded(folder) for folder in folders]
    if reason := why_apart(shards):
        raise DataError(reason)
    run = join(shards)
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
    rows = [
        row
        for folder in folders
        for file in sorted(folder.glob("turns*.jsonl"))
        for row in records.read(file, [])
    ]
    rows.sort(key=lambda row: (row.task, row.doc_id, row.turn, row.repeat, row.run_id))
    for row in rows:
        records.append(records.records_file(whole, rank=0), row)
    for manifest in run.manifests.values():
        write_manifest(whole, manifest)
    logs = [log for folder in folders for log in newest_logs(folder)]
    if logs:
        newest = max(logs, key=lambda log: log.date)
        of_model = whole / newest.path.parent.name
        of_model.mkdir()
        for task in sorted({log.task for log in logs}):
            samples = _samples([log for log in logs if log.task == task])
            path = of_model / f"samples_{task}_{newest.date}.jsonl"
            path.write_bytes(b"".join(line + b"\n" for line in samples))
        results = json.dumps(_results(whole, run, newest), indent=2)
        (of_model / f"results_{newest.date}.json").write_text(results, encoding="utf-8")


def _samples(logs: Sequence[SampleLog]) -> list[bytes]:
    """The lines of sample logs, as they are, in order of the documents."""
    lines = [line for log in logs for _, line in journal.lines(log.path)]
    return sorted(lines, key=lambda line: int(json.loads(line)["doc_id"]))


def _results(whole: Path, run: RecordedRun, newest: SampleLog) -> dict[str, Any]:
    """The results file of one shard, with what all of them give."""
    rows = run.records
    path = next(newest.path.parent.glob(f"*_{newest.date}.json"))
    scores = {task: of_task for (_, task), of_task in run.scores.items()}
    of_documents = read_run(whole).scores
    last = max(row.run_id for row in rows)
    try:
        written: dict[str, Any] = journal.parsed(journal.read(path))
        written["config"]["copyspec"] = {"run_id": last, "figures": run_figures(rows)}
        written["config"]["samples"] = run.manifests[last].spec.evaluation["samples"]
    except BROKEN as error:
        raise DataError(f"{path}: not lm-eval's results ({error!r}); run it again") from error
    for name in ("groups", "group_subtasks"):  # of tasks together, which are means of tasks
        written.pop(name, None)
    return written | {
        "results": {
            task: {
                "alias": task,
                "sample_len": len({row.doc_id for row in rows if row.task == task}),
                **dict(_means(scores.get(task, {}), values)),
            }
            for task, values in of_documents.items()
        },
        "n-samples": {
            task: {
                "original": run.documents.get(task),
                "effective": len({row.doc_id for row in rows if row.task == task}),
            }
            for task in of_documents
        },
    }


def _means(
    scores: Mapping[str, float], values: Mapping[str, Mapping[int, float]]
) -> Iterator[tuple[str, Any]]:
    """Each score, and its standard error where there is more than one document."""
    for name, score in scores.items():
        key = score_key(name)
        yield key, score
        if len(of_documents := list(values[key].values())) > 1:
            error = statistics.stdev(of_documents) / len(of_documents) ** 0.5
            yield key.replace(",", "_stderr,"), error
