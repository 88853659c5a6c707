"""What a run leaves in its folder: the rows of `turns.jsonl`, the manifest, and the table."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from lm_eval.api.instance import Instance

from copyspec_eval import provenance, records
from copyspec_eval.errors import DataError
from copyspec_eval.harness.evaluation import (
    blank_secrets,
    check_saving,
    document_number,
    num_answers,
    output_folder,
)
from copyspec_eval.manifest import RunSpec, new_manifest, write_manifest
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.table import run_figures, run_table

# Under lm-eval's own logger, so that its verbosity and its handler are ours too.
logger = logging.getLogger("lm_eval.copyspec")


def check_output_folder() -> None:
    """Refuse an output folder that cannot be written, before a model is loaded; none is made.

    Raises:
        DataError: it cannot.
    """
    blank_secrets()
    check_saving()
    folder = output_folder()
    if folder is None:
        return
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise DataError(
            f"{existing}: cannot be written ({error.strerror}); choose another --output_path"
        ) from error


class RunRecorder:
    """Appends each turn's row to lm-eval's output folder, and keeps it for the table.

    Without `--output_path` the rows are kept in memory only. One recorder per model object; a run
    of it has one `RunSpec`, so a later evaluation with other settings is another run.

    Attributes:
        run_id: of the run under way.
        rows: what it has answered.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self.run_id = provenance.new_run_id()
        self.rows: list[TurnRecord] = []
        self._rank = rank
        self._world_size = world_size
        self._folder: Path | None = None
        self._spec: RunSpec | None = None

    def begin(self, spec: RunSpec, step_seconds: dict[int, float] | None = None) -> None:
        """Find the output folder of the evaluation under way and write the manifest there.

        A later call of the same evaluation adds its tasks.
        """
        blank_secrets()
        check_saving()
        folder, earlier = output_folder(), self._spec
        if earlier is not None:
            if (folder, replace(spec, tasks={})) == (self._folder, replace(earlier, tasks={})):
                spec = replace(spec, tasks=earlier.tasks | spec.tasks)
            else:
                self.run_id, self.rows = provenance.new_run_id(), []
        if folder is not None and self._rank == 0 and (folder, spec) != (self._folder, earlier):
            manifest = new_manifest(self.run_id, spec, step_seconds, num_answers())
            write_manifest(folder, manifest)
        self._folder, self._spec = folder, spec

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
        of_others = [row for file in files if file.exists() for row in records.read(file, [])]
        return self.rows + [row for row in of_others if row.run_id == self.run_id]

    def report(self) -> dict[str, Any]:
        """Log the table of the run; its id, and its figures per task, turn and category."""
        rows = self.all_rows()
        if rows:
            logger.info("figures of this run:\n%s", run_table(rows))
        return {"run_id": self.run_id, "figures": run_figures(rows)}


def prompt_text(context: Any) -> str:
    """A prompt as text; chat APIs are given a list of messages."""
    return context if isinstance(context, str) else json.dumps(context, ensure_ascii=False)


def request_fields(instance: Instance, repeat: int, rank: int, prompt: str) -> dict[str, Any]:
    """The fields of a `TurnRecord` that say what was asked."""
    category = instance.doc.get("category", "") if isinstance(instance.doc, dict) else ""
    task = instance.task_name or ""
    document = document_number(task, instance.doc_id)
    return {
        "task": task,
        "doc_id": -1 if document is None else document,
        "turn": getattr(instance, "turn", 1),
        "repeat": repeat,
        "category": str(category),
        "rank": rank,
        "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(),
        "generation": ", ".join(
            f"{name}={value}" for name, value in sorted(instance.args[1].items()) if name != "until"
        ),
    }
