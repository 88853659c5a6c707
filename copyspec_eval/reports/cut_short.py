"""Runs that were cut short: which run continued them, or how much of what was asked they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from copyspec_eval.manifest import RunManifest
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.results import Results


@dataclass(frozen=True, slots=True)
class CutShort:
    """A run without results: a kill, an error or a power cut ended it, or it is not done yet.

    Attributes:
        folder: where its records are.
        run_id: see above.
        answers: how many it has.
        asked: how many it was asked for; None where that is not known.
    """

    folder: Path
    run_id: str
    answers: int
    asked: int | None

    def __str__(self) -> str:
        """One line, for people."""
        of = "" if self.asked is None else f" of {self.asked}"
        # Notes that are shared name files by their last name, and a folder's can tell too much.
        return (
            f"{self.folder / 'turns.jsonl'}: run {self.run_id} was cut short or is still running "
            f"(answers: {self.answers}{of}; results of lm-eval: none)"
        )


def last_runs(
    rows: Sequence[TurnRecord], manifests: Mapping[str, RunManifest], results: Results
) -> dict[str, str]:
    """For each run into a folder the id of the last one that continued it; its own for most runs.

    A later run continues one that was cut short if it has the same settings for every task that
    lacks results. The two are one run: an answer that both have counts once, as the later one gave
    it, since that is the one that lm-eval scored.
    """
    last: dict[str, str] = {}
    for run_id, tasks in sorted(_without_results(rows, manifests, results).items(), reverse=True):
        later = [other for other in sorted(last) if _same(tasks, run_id, other, manifests)]
        last[run_id] = last[later[0]] if tasks and later else run_id
    return last


def cut_short(
    folder: Path,
    rows: Sequence[TurnRecord],
    manifests: Mapping[str, RunManifest],
    results: Results,
) -> list[CutShort]:
    """The runs into `folder` that did not reach their end, nor were continued; with `last_runs`."""
    last = last_runs(rows, manifests, results)
    answers: dict[str, set[tuple[str, int, int, int]]] = {run_id: set() for run_id in last.values()}
    for row in rows:
        answers[last[row.run_id]].add((row.task, row.doc_id, row.turn, row.repeat))
    return [
        CutShort(
            folder,
            run_id,
            len(answers[run_id]),
            manifests[run_id].num_answers if run_id in manifests else None,
        )
        for run_id, tasks in sorted(_without_results(rows, manifests, results).items())
        if tasks and last[run_id] == run_id
    ]


def _without_results(
    rows: Sequence[TurnRecord], manifests: Mapping[str, RunManifest], results: Results
) -> dict[str, set[str]]:
    """For each run the tasks that it began and that lm-eval did not take to their end."""
    tasks = {run_id: {*manifest.spec.tasks} for run_id, manifest in manifests.items()}
    for row in rows:
        tasks.setdefault(row.run_id, set()).add(row.task)
    return {
        run_id: set()
        if run_id in results.whole
        else {task for task in of_run if (run_id, task) not in results.scores}
        for run_id, of_run in tasks.items()
    }


def _same(tasks: set[str], run_id: str, other: str, manifests: Mapping[str, RunManifest]) -> bool:
    """Whether two runs have the same settings for `tasks`."""
    if run_id not in manifests or other not in manifests:
        return False
    a, b = manifests[run_id].spec, manifests[other].spec
    return all(task in b.tasks and a.of_task(task) == b.of_task(task) for task in tasks)
