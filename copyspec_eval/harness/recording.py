"""What a run notes: the rows of `turns.jsonl`, the manifest, the table and the progress bar."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook
from lm_eval.loggers import EvaluationTracker
from lm_eval.models.huggingface import HFLM
from tqdm import tqdm

from copyspec_eval import provenance, records
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports import table
from copyspec_eval.reports.summary import METRICS, Parts

# Under lm-eval's own logger, so that its verbosity and its handler are ours too.
logger = logging.getLogger("lm_eval.copyspec")

# Figures of sums, so that the sums are all there is to keep.
_SHOWN = ("tokens_per_second", "copied_share", "speedup", "diverged")


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
        if self._folder is None and (folder := output_folder()) is not None:
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

    def report(self) -> dict[str, Any]:
        """Log the table of the run, and return its figures per task, turn and category."""
        rows = self.all_rows()
        if rows:
            logger.info("figures of this run:\n%s", table.render(rows))
        return table.figures(rows)


class Progress:
    """A progress bar over requests that shows how fast it goes and what is copied, so far."""

    def __init__(self, total: int, disable: bool) -> None:
        self._bar = tqdm(total=total, disable=disable, desc="Answering", unit="answer")
        self._sums: dict[str, Parts] = {}

    def update(self, row: TurnRecord) -> None:
        """One more answer."""
        shown = {}
        for metric in METRICS:
            parts = metric.parts(row) if metric.name in _SHOWN else None
            if parts is not None:
                before = self._sums.get(metric.name, (0.0,) * len(parts))
                total = tuple(map(sum, zip(before, parts, strict=True)))
                self._sums[metric.name] = total
                shown[metric.name] = f"{metric.total([total]):.3g}"
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update()

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()


class AnswerKey(NamedTuple):
    """One answer to give: the instance (by identity, as lm-eval hands it on) and its repeat."""

    instance: int
    repeat: int


def answer_keys(requests: list[Instance]) -> list[AnswerKey]:
    """The answer that belongs to each request.

    lm-eval lists an instance `repeats` times for as many answers, and the last one once more for
    each document that other ranks have over; the latter get an answer that is there already.
    """
    times: Counter[int] = Counter()
    keys = []
    for request in requests:
        keys.append(AnswerKey(id(request), times[id(request)] % (request.repeats or 1)))
        times[id(request)] += 1
    return keys


def split_documents_over_ranks(lm: HFLM) -> None:
    """Make every launched process a rank of its own, on CPUs and over machines too.

    `hf` does so only where it sees several GPUs, and numbers the ranks within each machine.
    """
    accelerator = getattr(lm, "accelerator", None)
    if accelerator is not None and accelerator.num_processes > 1:
        lm._rank = accelerator.process_index
        lm._world_size = accelerator.num_processes


def prompt_text(context: Any) -> str:
    """A prompt as text; chat APIs are given a list of messages."""
    return context if isinstance(context, str) else json.dumps(context, ensure_ascii=False)


def turn_facts(instance: Instance, repeat: int, rank: int, prompt: str) -> dict[str, Any]:
    """The fields of a `TurnRecord` that say what was asked."""
    category = instance.doc.get("category", "") if isinstance(instance.doc, dict) else ""
    return {
        "run_id": provenance.run_id(),
        "task": instance.task_name or "",
        "doc_id": -1 if instance.doc_id is None else instance.doc_id,
        "turn": getattr(instance, "turn", 1),
        "repeat": repeat,
        "category": str(category),
        "rank": rank,
        "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(),
        "generation": ", ".join(
            f"{name}={value}" for name, value in sorted(instance.args[1].items()) if name != "until"
        ),
    }


def model_facts(lm: HFLM) -> dict[str, Any]:
    """What the manifest says of a transformers model."""
    return {
        "pretrained": lm.pretrained if isinstance(lm.pretrained, str) else "(an object)",
        "model_type": lm.model.config.model_type,
        "revision": lm.revision,
        "dtype": str(lm.model.dtype),
        "device": str(lm.device),
        "ranks": lm.world_size,
    }


def put_into_cache(cache: CacheHook, instance: Instance, answer: str) -> None:
    """Put an answer into lm-eval's `--use_cache`, and on the disk: a kill must not lose it."""
    cache.add_partial("generate_until", instance.args, answer)
    if cache.dbdict is not None:
        cache.dbdict.commit(blocking=True)


def output_folder() -> Path | None:
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
