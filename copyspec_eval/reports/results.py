"""A run of our models in one folder: rows, settings, and what lm-eval's results say of it."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from copyspec_eval import journal
from copyspec_eval.errors import DataError
from copyspec_eval.manifest import RunManifest, RunSpec, read_manifests
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.summary import METRICS

TURN_SCORE = re.compile(r"(.+)_turn(\d+)")  # the name of a score that belongs to one turn
BROKEN = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading JSON of an unexpected shape raises."""

# `results_DATE.json`; where `--output_path` is `NAME.json`, `NAME_DATE.json`.
_FILE = re.compile(r"results_.*|.*_\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(\.\d+)?")
_OURS = "copyspec"  # what our models are called in lm-eval begins with this
_NO_SCORES = {name for metric in METRICS for name in metric.names} | {"answered", "sample_len"}

RunScores = dict[tuple[str, str], dict[str, float]]
_Manifests = Mapping[str, RunManifest]


class Rating(NamedTuple):
    task: str
    judge: str
    category: str
    turn: int
    question_id: int
    score: float


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The runs into one folder, or the run whose shards are in several folders.

    A later run of equal settings continues one that was cut short.
    """

    folder: Path  # that of the first shard
    records: list[TurnRecord]
    manifests: dict[str, RunManifest]
    scores: RunScores  # by run id and task, then by metric
    documents: dict[str, int]  # by task, how many it has, asked or not
    last_runs: dict[str, str]  # by run id, the last run that continued it, often itself
    cut_short: dict[str, str]  # a note on each run that neither reached its end nor was continued
    notes: list[str] = field(default_factory=list)  # what is incomplete or left out, for people
    ratings: list[Rating] = field(default_factory=list)


def read_folder(folder: Path, rows: list[TurnRecord], notes: list[str]) -> RecordedRun:
    """The runs that left `rows` in a folder; notes on manifests as by `read_manifests`.

    A results file, there or below, belongs to the run that it names, and to its other arms. A task
    that was entirely in lm-eval's cache belongs to the latest run before it that answered it, in
    the same arm. A file that names no run, and no model of another kind, belongs to the latest run.
    """
    manifests = read_manifests(folder, notes)
    answered = {(row.run_id, row.task) for row in rows}
    scores: RunScores = {}
    documents: dict[str, int] = {}
    whole: set[str] = set()
    files = (path for path in folder.rglob("*.json") if _FILE.fullmatch(path.stem))
    for path in sorted(files, key=lambda path: path.name):
        try:
            written = journal.parsed(journal.read(path))
            by_task, config = [*written["results"].items()], written.get("config", {})
            ours = config.get("copyspec", {})
            arms = (ours, *ours.get("other_arms", ()))
            named = [arm["run_id"] for arm in arms if "run_id" in arm]
            if not named and not config.get("model", _OURS).startswith(_OURS):
                continue
            whole.update(named)
            for run_id, (task, values) in itertools.product(named or [None], by_task):
                runs = (run for run, answered_task in answered if answered_task == task)
                owners = (run for run in runs if run_id is None or _precedes(run, run_id, named))
                named_values = {score_name(key): value for key, value in values.items()}
                named_values.pop("", None)
                scores[max(owners, default=run_id or ""), task] = numbers(named_values)
            for task, counts in written.get("n-samples", {}).items():
                if isinstance(counts.get("original"), int):
                    documents[task] = counts["original"]
        except BROKEN as error:
            remedy = "move it away, or run lm_eval again"
            raise DataError(f"{path}: not lm-eval's results ({error!r}); {remedy}") from error
    endings = _endings(folder, rows, manifests, scores, whole)
    return RecordedRun(folder, rows, manifests, scores, documents, *endings)


def _precedes(run: str, named: str, arms: Sequence[str]) -> bool:
    """Whether `run` is `named` or an earlier run, in the same arm if there are several.

    >>> arms = ["20260102T000000-b", "20260102T000000-b-2"]
    >>> [_precedes("20260101T000000-a-2", named, arms) for named in arms]
    [False, True]
    """
    # What follows the process's id is the run's number there, see `provenance.new_run_id`.
    return run <= named and (len(arms) == 1 or run.split("-")[2:] == named.split("-")[2:])


def _endings(
    folder: Path, rows: list[TurnRecord], manifests: _Manifests, scores: RunScores, whole: set[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """`last_runs` and `cut_short`; a results file names the runs in `whole`."""
    begun = {run_id: {*manifest.spec.tasks} for run_id, manifest in manifests.items()}
    for row in rows:
        begun.setdefault(row.run_id, set()).add(row.task)
    last: dict[str, str] = {}
    unfinished: list[str] = []
    for run_id, tasks in sorted(begun.items(), reverse=True):
        last[run_id] = run_id
        unscored = {task for task in tasks if (run_id, task) not in scores}
        if run_id in whole or not unscored:
            continue
        later = (run for run in sorted(last) if _continues(run, run_id, unscored, manifests))
        if earliest := next(later, None):
            last[run_id] = last[earliest]
        else:
            unfinished.append(run_id)
    cut_short = {}
    for run_id in reversed(unfinished):
        count = str(len({row.key for row in rows if last[row.run_id] == run_id}))
        if run_id in manifests and manifests[run_id].num_answers is not None:
            count += f" of {manifests[run_id].num_answers}"
        # Shared notes show only the last part of a path, and a folder's name can reveal too much.
        ended = f"run {run_id} was cut short or is still running"
        result = f"(answers: {count}; results of lm-eval: none)"
        cut_short[run_id] = f"{folder / 'turns.jsonl'}: {ended} {result}"
    return last, cut_short


def _continues(other: str, run_id: str, tasks: set[str], manifests: _Manifests) -> bool:
    if run_id == other or run_id not in manifests or other not in manifests:
        return False
    a, b = manifests[run_id].spec, manifests[other].spec
    return all(task in b.tasks and a.of_task(task) == b.of_task(task) for task in tasks)


def are_shards(runs: Sequence[RecordedRun]) -> bool:
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


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among the values that lm-eval wrote."""
    known = {name: value for name, value in values.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in known.items() if math.isfinite(value)}


def score_name(key: str) -> str:
    """The name of a score that lm-eval calls "metric,filter"; "" for a count, an error or a time.

    >>> [score_name(key) for key in ("acc,none", "acc,strict", "acc_stderr,none", "sample_len")]
    ['acc', 'acc (strict)', '', '']
    """
    name, _, chosen = key.partition(",")
    on_turn = TURN_SCORE.fullmatch(name)
    if name.endswith("_stderr") or (on_turn[1] if on_turn else name) in _NO_SCORES:
        return ""
    return name if chosen in ("", "none") else f"{name} ({chosen})"
