"""Where a run's rows go while it runs: `turns.jsonl`, the manifest, and the progress bar."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from lm_eval.loggers import EvaluationTracker
from tqdm import tqdm

from copyspec_eval import provenance, records
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.summary import METRICS, ratio_of_sums

_SHOWN = ("tokens_per_second", "copied_share")


class RunRecorder:
    """Appends each turn's row to lm-eval's output folder, and keeps it for the table.

    Without `--output_path` the rows are kept in memory only. One recorder per model object.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._folder: Path | None = None
        self.rows: list[TurnRecord] = []

    def begin(self, config: dict[str, Any]) -> None:
        """Find the output folder of the evaluation under way and write the manifest there once."""
        if self._folder is None and (folder := _output_folder()) is not None:
            self._folder = folder
            if self._rank == 0:
                provenance.write_manifest(folder, provenance.manifest(config))

    def add(self, row: TurnRecord) -> None:
        """Keep a row, and append it to the file if there is one."""
        self.rows.append(row)
        if self._folder is not None:
            records.append(records.records_file(self._folder, self._rank), row)

    def all_rows(self) -> list[TurnRecord]:
        """The run's rows of all ranks, as far as they went to a folder; else this rank's."""
        if self._folder is None:
            return self.rows
        others = set(range(self._world_size)) - {self._rank}
        files = [records.records_file(self._folder, rank) for rank in sorted(others)]
        theirs = [row for file in files if file.exists() for row in records.read(file)]
        return self.rows + [row for row in theirs if row.run_id == provenance.run_id()]


class Progress:
    """A progress bar over requests that shows tokens per second and the copied share so far."""

    def __init__(self, total: int, disable: bool) -> None:
        self._bar = tqdm(total=total, disable=disable, desc="CopySpec", unit="answer")
        self._sums = {metric: (0.0, 0.0) for metric in METRICS if metric.name in _SHOWN}

    def update(self, row: TurnRecord) -> None:
        """One more answer."""
        for metric, (numerator, denominator) in self._sums.items():
            both = numerator + metric.numerator(row), denominator + metric.denominator(row)
            self._sums[metric] = both
        shown = {metric.name: f"{ratio_of_sums([s]):.3g}" for metric, s in self._sums.items()}
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update()

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()


def _output_folder() -> Path | None:
    """The folder of lm-eval's `--output_path`.

    lm-eval tells it to its EvaluationTracker alone, which `simple_evaluate` holds while it runs us;
    so the tracker is looked for among the callers' local variables.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        for value in frame.f_locals.values():
            if isinstance(value, EvaluationTracker):
                if not value.output_path:
                    return None
                path = Path(value.output_path)
                return path.parent if path.suffix == ".json" else path
        frame = frame.f_back
    return None
