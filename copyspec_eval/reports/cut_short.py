"""Runs that were cut short: what they have, and how much of what was asked that is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from copyspec_eval.manifest import RunManifest
from copyspec_eval.records import TurnRecord

_Answer = tuple[str, int, int, int]


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


def cut_short(
    folder: Path,
    rows: Iterable[TurnRecord],
    manifests: Mapping[str, RunManifest],
    whole: Set[str],
) -> list[CutShort]:
    """The runs into `folder` that did not reach their end, but for those that a later one finished.

    Args:
        folder: where the records are.
        rows: all of them.
        manifests: by run id.
        whole: ids of the runs that reached it, see `results.Results`.
    """
    answers: dict[str, set[_Answer]] = {run_id: set() for run_id in manifests}
    for row in rows:
        answer = row.task, row.doc_id, row.turn, row.repeat
        answers.setdefault(row.run_id, set()).add(answer)
    return [
        CutShort(
            folder,
            run_id,
            len(answers[run_id]),
            manifests[run_id].num_answers if run_id in manifests else None,
        )
        for run_id in sorted(answers.keys() - whole)
        if not any(
            _finished_by(run_id, later, answers, manifests)
            for later in whole & answers.keys()
            if later > run_id
        )
    ]


def _finished_by(
    run_id: str,
    later: str,
    answers: Mapping[str, Set[_Answer]],
    manifests: Mapping[str, RunManifest],
) -> bool:
    """Whether a run of the same settings left out what this one answered.

    It was whole, so it had those answers from lm-eval's cache.
    """
    if run_id not in manifests or later not in manifests:
        return False
    spec, of_later = manifests[run_id].spec, manifests[later].spec
    same = spec.tasks.keys() <= of_later.tasks.keys() and all(
        spec.of_task(task) == of_later.of_task(task) for task in spec.tasks
    )
    return same and answers[run_id].isdisjoint(answers[later])
