"""lm-eval's results files in the folder of a run: whose they are, and the scores in them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from copyspec_eval import journal
from copyspec_eval.errors import DataError
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.summary import METRICS

SCORE_OF_TURN = re.compile(r"(.+)_turn(\d+)")
"""A score of one turn, by its name."""

BROKEN = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading JSON of any other shape raises."""

# `results_DATE.json`; where `--output_path` is `NAME.json`, `NAME_DATE.json`.
_FILE = re.compile(r"results_.*|.*_\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(\.\d+)?")

# How our models are called in lm-eval.
_OURS = "copyspec"

_NO_SCORES = {metric.name for metric in METRICS} | {"answered", "sample_len"}


@dataclass(frozen=True, slots=True)
class Results:
    """What the results files of a folder tell.

    Attributes:
        scores: of a run id and a task, by metric.
        whole: ids of the runs that they name. lm-eval writes results at the very end, so that a run
            that was killed has none.
        documents: how many a task has, asked or not.
    """

    scores: dict[tuple[str, str], dict[str, float]]
    whole: set[str]
    documents: dict[str, int]


def read_results(folder: Path, rows: Sequence[TurnRecord]) -> Results:
    """The results files in `folder` and below.

    A file is of the run that it names, and of those of its other arms; where such a run answered
    nothing of a task, since all of it was in lm-eval's cache, the task is of the latest run before
    it which did, and which was the same arm. One that names none, and no model of another kind, is
    of the latest run.

    Raises:
        DataError: a file is broken.
    """
    answered = {(row.run_id, row.task) for row in rows}
    results = Results({}, set(), {})
    files = (path for path in folder.rglob("*.json") if _FILE.fullmatch(path.stem))
    for path in sorted(files, key=lambda path: path.name):
        try:
            written = journal.parsed(journal.read(path))
            of_tasks, config = [*written["results"].items()], written.get("config", {})
            ours = config.get("copyspec", {})
            named = [of["run_id"] for of in (ours, *ours.get("other_arms", ())) if "run_id" in of]
            if not named and not config.get("model", _OURS).startswith(_OURS):
                continue
            results.whole.update(named)
            for run_id, (task, of_task) in itertools.product(named or [None], of_tasks):
                runs = (run for run, of in answered if of == task)
                owners = (run for run in runs if run_id is None or _precedes(run, run_id, named))
                owner = max(owners, default=run_id or "")
                results.scores[owner, task] = dict(_numbers(of_task))
            for task, counts in written.get("n-samples", {}).items():
                if isinstance(counts.get("original"), int):
                    results.documents[task] = counts["original"]
        except BROKEN as error:
            raise DataError(
                f"{path}: not lm-eval's results ({error!r}); move it away, or run lm_eval again"
            ) from error
    return results


def _precedes(run: str, named: str, arms: Sequence[str]) -> bool:
    """Whether `run` is `named` or an earlier run, of the same arm where there are several.

    >>> arms = ["20260102T000000-b", "20260102T000000-b-2"]
    >>> [_precedes("20260101T000000-a-2", named, arms) for named in arms]
    [False, True]
    """
    return run <= named and (len(arms) == 1 or _number(run) == _number(named))


def _number(run: str) -> str:
    """Which of the runs of its process one is; see `provenance.new_run_id`."""
    return "".join(run.split("-")[2:])


def _numbers(of_task: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Scores by name, the filter in brackets if there is one; no errors, counts and times."""
    for key, value in of_task.items():
        name = score_name(key)
        if name and isinstance(value, int | float) and math.isfinite(value):
            yield name, float(value)


def score_key(name: str) -> str:
    """How lm-eval calls the score of that name.

    >>> score_key("acc"), score_key("acc (strict)")
    ('acc,none', 'acc,strict')
    """
    of_filter = re.fullmatch(r"(.+) \((.+)\)", name)
    return ",".join(of_filter.groups()) if of_filter else f"{name},none"


def score_name(key: str) -> str:
    """The name of a score that lm-eval calls "metric,filter"; "" for a count, an error or a time.

    >>> [score_name(key) for key in ("acc,none", "acc,strict", "acc_stderr,none", "sample_len")]
    ['acc', 'acc (strict)', '', '']
    """
    name, _, chosen = key.partition(",")
    of_turn = SCORE_OF_TURN.fullmatch(name)
    if name.endswith("_stderr") or (of_turn[1] if of_turn else name) in _NO_SCORES:
        return ""
    return name if chosen in ("", "none") else f"{name} ({chosen})"
