"""What a run leaves in its folder: the rows of `turns.jsonl`, the manifest, and the table."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook
from tqdm import tqdm

from copyspec_eval import provenance, records
from copyspec_eval.errors import DataError
from copyspec_eval.harness.backends.base import TimedAnswer
from copyspec_eval.harness.evaluation import document_number, num_answers, output_folder
from copyspec_eval.harness.recorded import command as recorded_command
from copyspec_eval.harness.recorded import recorded
from copyspec_eval.manifest import RunManifest, RunSpec, write_manifest
from copyspec_eval.records import RecordedText, SpanCharacters, TurnRecord
from copyspec_eval.reports.summary import METRICS
from copyspec_eval.reports.tables import run_figures, run_table
from copyspec_eval.reports.turns import columns
from copyspec_eval.session.span_characters import span_characters

# Under lm-eval's own logger, so that its verbosity and its handler are ours too.
logger = logging.getLogger("lm_eval.copyspec")

_NAMES = ("tokens_per_second", "copied_share", "speedup", "diverged")
_SHOWN = [metric for metric in METRICS if metric.name in _NAMES]
"""Figures on the bar; each needs nothing but sums."""


class Asked(NamedTuple):
    """One answer that lm-eval asked for: a repeat of an instance, its prompt and settings."""

    instance: Instance
    repeat: int
    prompt: str
    settings: dict[str, Any]


def check_output_folder() -> None:
    """Refuse an output folder that cannot be written, without making it."""
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
    """Records a run's rows, in lm-eval's output folder if any; another `RunSpec` is another run."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.run_id = provenance.new_run_id()
        self.rows: list[TurnRecord] = []
        self._rank = rank
        self._world_size = world_size
        self._folder: Path | None = None
        self._spec: RunSpec | None = None

    def begin(self, spec: RunSpec, step_seconds: dict[int, float] | None = None) -> None:
        """Write the manifest of the evaluation under way; a later call adds its tasks to it."""
        folder, earlier = output_folder(), self._spec
        if earlier is not None:
            if (folder, replace(spec, tasks={})) == (self._folder, replace(earlier, tasks={})):
                spec = replace(spec, tasks=earlier.tasks | spec.tasks)
            else:
                self.run_id, self.rows = provenance.new_run_id(), []
        if folder is not None and self._rank == 0 and (folder, spec) != (self._folder, earlier):
            command = recorded_command() or Path(sys.argv[0]).name
            settings = (command, spec, step_seconds, num_answers())
            write_manifest(folder, RunManifest(self.run_id, provenance.started_at(), *settings))
        self._folder, self._spec = folder, spec

    def add(
        self,
        asked: Asked,
        text: str,
        answer: TimedAnswer,
        decode: Callable[[Sequence[int]], str] | None = None,
        **settings: Any,
    ) -> RecordedText:
        """Record an answer, and append its row to the file if there is one.

        With `decode`, the text of tokens, the row also has the characters of what was copied.
        `settings` are further fields of `TurnRecord`.
        """
        prompt, whole_text = asked.prompt, text
        places: tuple[SpanCharacters, ...] = ()
        if decode is not None:
            prompt, whole_text, places = span_characters(
                decode, answer.prompt_ids, answer.token_ids or (), answer.spans
            )
        instance, task = asked.instance, asked.instance.task_name or ""
        document = document_number(task, instance.doc_id)
        category = instance.doc.get("category", "") if isinstance(instance.doc, dict) else ""
        generation = sorted(recorded(asked.settings).items())
        row = TurnRecord(
            run_id=self.run_id,
            rank=self._rank,
            task=task,
            doc_id=-1 if document is None else document,
            turn=getattr(instance, "turn", 1),
            repeat=asked.repeat,
            category=str(category),
            prompt_sha256=hashlib.sha256(asked.prompt.encode()).hexdigest(),
            generation=", ".join(f"{k}={v}" for k, v in generation if k != "until"),
            prompt=prompt,
            counts=answer.counts,
            attempts=answer.attempts,
            token_ids=answer.token_ids,
            text=text,
            answer=whole_text,
            spans=answer.spans,
            span_characters=places,
            baseline=answer.baseline,
            **settings,
        )
        self.rows.append(row)
        if self._folder is not None:
            records.append(records.records_file(self._folder, self._rank), row)
        return RecordedText(text, row)

    def all_rows(self) -> list[TurnRecord]:
        """The run's rows of all ranks if they went to a folder; else this rank's."""
        rows = list(self.rows)
        if self._folder is not None:
            for rank in set(range(self._world_size)) - {self._rank}:
                file = records.records_file(self._folder, rank)
                others = records.read(file, []) if file.exists() else []
                rows += [row for row in others if row.run_id == self.run_id]
        return rows

    def report(self) -> dict[str, Any]:
        rows = self.all_rows()
        if rows:
            logger.info("figures of this run:\n%s", run_table(rows))
        return {"run_id": self.run_id, "figures": run_figures(rows)}


class Answers:
    """The answers to one call of `generate_until`, each `asked` once, with a bar of their speed."""

    def __init__(self, lm: Any, requests: Sequence[Instance], disable_bar: bool) -> None:
        self._cache: CacheHook = lm.cache_hook
        self._disable_bar = disable_bar or lm.rank != 0
        # lm-eval lists an instance `repeats` times, and the last one again for each document that
        # other ranks have more; these get the answer that is there.
        times: Counter[int] = Counter()
        self._keys: list[tuple[int, int]] = []
        asked: dict[tuple[int, int], Asked] = {}
        for request in requests:
            key = id(request), times[id(request)] % (request.repeats or 1)
            if key not in asked:
                prompt, settings, *_ = request.args
                if not isinstance(prompt, str):  # a chat API's messages
                    prompt = json.dumps(prompt, ensure_ascii=False)
                asked[key] = Asked(request, key[1], prompt, settings)
            self._keys.append(key)
            times[id(request)] += 1
        self.asked = list(asked.values())
        self._texts: dict[tuple[int, int], RecordedText] = {}
        self._sums: Counter[str] = Counter()

    def __enter__(self) -> Answers:
        self._bar = tqdm(
            total=len(self.asked), disable=self._disable_bar, desc="Answering", unit="answer"
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def add(self, asked: Asked, text: RecordedText) -> None:
        """One more answer; lm-eval's `--use_cache` writes it at once, so that no kill loses it."""
        self._texts[id(asked.instance), asked.repeat] = text
        self._cache.add_partial("generate_until", asked.instance.args, text)
        if self._cache.dbdict is not None:
            self._cache.dbdict.commit(blocking=True)
        self._show(columns(text.record))

    def _show(self, fields: dict[str, Any]) -> None:
        names = {name for metric in _SHOWN for name in metric.columns}
        self._sums.update({name: fields[name] for name in names if fields[name] is not None})
        shown = {}
        for metric in _SHOWN:
            values = [self._sums.get(name, math.nan) for name in metric.columns]
            figure = metric.over(numpy.array([values]), numpy.arange(1))
            if not math.isnan(figure):
                shown[metric.name] = f"{figure:.3g}"
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update()

    def texts(self) -> list[str]:
        return [self._texts[key] for key in self._keys]
