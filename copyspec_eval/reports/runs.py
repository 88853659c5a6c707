"""A run as lm-eval leaves it in a folder: what was asked, what was answered, how it scored."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from copyspec_eval import journal, records
from copyspec_eval.errors import DataError
from copyspec_eval.manifest import RunManifest, read_manifests
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.cut_short import cut_short
from copyspec_eval.reports.results import BROKEN, read_results
from copyspec_eval.sources import read_jsonl

Scores = dict[str, dict[str, dict[int, float]]]
"""`{task: {"metric,filter": {doc_id: value}}}`."""


class AnswerKey(NamedTuple):
    """Which answer of a run; `turn` counts from 1, `repeat` from 0."""

    task: str
    doc_id: int
    turn: int
    repeat: int


@dataclass(frozen=True, slots=True)
class Answer:
    """One generated answer.

    Attributes:
        task, doc_id, turn, repeat: as in `AnswerKey`.
        prompt: the rendered prompt; None where only its hash was recorded.
        prompt_sha256: hash of the rendered prompt.
        text: the answer as it was scored.
        token_ids: the tokens it came from, where the backend is ours.
        gen_kwargs: the generation settings of the request; empty where they were not recorded.
        doc: the task's document; None where it was not recorded.
    """

    task: str
    doc_id: int
    turn: int
    repeat: int
    prompt: str | None
    prompt_sha256: str
    text: str
    token_ids: tuple[int, ...] | None
    gen_kwargs: dict[str, Any]
    doc: dict[str, Any] | None = None

    @property
    def key(self) -> AnswerKey:
        """Which answer this is."""
        return AnswerKey(self.task, self.doc_id, self.turn, self.repeat)

    @property
    def sampled(self) -> bool:
        """Whether it was drawn rather than decoded greedily, by lm-eval's rule."""
        chosen = self.gen_kwargs.get("do_sample")
        hot = float(self.gen_kwargs.get("temperature") or 0) > 0
        return hot if chosen is None else bool(chosen)


@dataclass(frozen=True, slots=True)
class Run:
    """A run's answers and scores.

    Attributes:
        folder: where it was read from.
        answers: task by task in the order of the sample log; without logs in order of key.
        scores: numbers per document; metrics of other values are left out.
        dtype: the model's, such as "torch.bfloat16"; None where it is not recorded.
        model: the model's name as lm-eval makes it fit for a file's; None where it is not recorded.
        notes: what could not be read or was cut short, for people.
    """

    folder: Path
    answers: dict[AnswerKey, Answer]
    scores: Scores
    dtype: str | None
    model: str | None = None
    notes: tuple[str, ...] = ()


class SampleLog(NamedTuple):
    """lm-eval's `samples_<task>_<date>.jsonl`."""

    path: Path
    task: str
    date: str


def read_run(folder: Path) -> Run:
    """The run in `folder` and the folders below it; of each task the newest sample log.

    Without sample logs the answers are those of `turns.jsonl`.

    Raises:
        DataError: no such folder, neither of these in it, or one of them is broken.
    """
    if not folder.is_dir():
        raise DataError(
            f"{folder}: no such folder; give the one that lm_eval --output_path wrote to"
        )
    files = sorted(folder.rglob("turns*.jsonl"))
    notes: list[str] = []
    # By run id, so that a later run's answers are the ones that count.
    of_files = {file: records.read(file, notes) for file in files}
    rows = [row for of_file in of_files.values() for row in of_file]
    rows.sort(key=lambda row: row.run_id)
    logs = newest_logs(folder)
    if not rows and not logs:
        raise DataError(
            f"{folder}: no sample logs; run lm_eval with --output_path {folder} --log_samples"
        )
    run = _read_logs(folder, logs, rows) if logs else _of_rows(folder, rows)
    notes += _not_in_logs(folder, logs, rows)
    for place in sorted({file.parent for file in files}):
        of_place = [row for file in files if file.parent == place for row in of_files[file]]
        notes += _cut_short(place, of_place, bool(logs))
    return replace(run, notes=tuple(notes))


class ComparedRuns(NamedTuple):
    """Two runs to compare; `name` says which, where there are several such pairs."""

    name: str
    a: Run
    b: Run


def read_arms(folder: Path) -> list[ComparedRuns]:
    """Of each arm of a paired run the baseline's answers and its own; they have no scores.

    Raises:
        DataError: as `read_run`; or an answer has no baseline, or no tokens.
    """
    run = read_run(folder)
    rows = [row for file in sorted(folder.rglob("turns*.jsonl")) for row in records.read(file, [])]
    rows.sort(key=lambda row: row.run_id)
    manifests = read_manifests(folder, [])
    drafted: dict[str, dict[AnswerKey, Answer]] = {}
    for row in rows:
        key = AnswerKey(row.task, row.doc_id, row.turn, row.repeat)
        if row.baseline is None:
            raise DataError(f"{folder}: no paired run; give two runs, or one with paired=true")
        if row.token_ids is None or len(row.token_ids) != row.counts.num_tokens:
            raise DataError(f"{folder}: its rows are without tokens; give the run as it was made")
        if key in run.answers:
            same = row.baseline.difference is None
            drafted.setdefault(_arm_name(row, manifests), {})[key] = replace(
                run.answers[key],
                token_ids=row.token_ids,
                text=run.answers[key].text if same else row.answer,
            )
    if not drafted:
        raise DataError(f"{folder}: nothing to compare; give two runs, or one with paired=true")
    baseline = replace(run, scores={})
    return [
        ComparedRuns(name, baseline, replace(run, answers=answers, scores={}, notes=()))
        for name, answers in drafted.items()
    ]


def _arm_name(row: TurnRecord, manifests: Mapping[str, RunManifest]) -> str:
    """The drafter with all its settings, where the run's manifest is there."""
    manifest = manifests.get(row.run_id)
    if manifest is None or "arms" not in manifest.spec.drafting:
        return row.drafter or row.backend
    drafting = manifest.spec.drafting
    names = ("gamma", "num_draft_tokens", "delta")
    return ", ".join([str(row.drafter), *(f"{name}={drafting[name]}" for name in names)])


def _not_in_logs(
    folder: Path, logs: Sequence[SampleLog], rows: Sequence[TurnRecord]
) -> Iterator[str]:
    """Which tasks have answers that are not read, since others have a sample log."""
    unread = sorted({row.task for row in rows} - {log.task for log in logs})
    if logs and unread:
        yield f"{folder}: answers to {', '.join(unread)} are left out, for they have no sample log"


def _cut_short(folder: Path, rows: Sequence[TurnRecord], with_logs: bool) -> Iterator[str]:
    """Which runs into `folder` did not reach their end, as far as the files there tell."""
    notes: list[str] = []
    try:
        manifests = read_manifests(folder, notes)
        found = cut_short(folder, rows, manifests, read_results(folder, rows))
    except DataError as error:
        # The answers are there all the same.
        yield f"whether the runs are whole is not known: {error}"
        return
    # lm-eval writes a sample log after the results, so a run without these has none.
    read_instead = "; its answers are left out, for there are sample logs" if with_logs else ""
    yield from (f"{run}{read_instead}" for run in found)


def newest_logs(folder: Path) -> list[SampleLog]:
    """One log per task, in order of task; dates in names sort as text."""
    newest: dict[str, SampleLog] = {}
    for path in folder.rglob("samples_*_*.jsonl"):
        task, _, date = path.stem.removeprefix("samples_").rpartition("_")
        if task not in newest or newest[task].date < date:
            newest[task] = SampleLog(path, task, date)
    return [newest[task] for task in sorted(newest)]


def _read_logs(folder: Path, logs: Sequence[SampleLog], rows: Sequence[TurnRecord]) -> Run:
    token_ids = {(r.task, r.turn, r.prompt_sha256, r.text): r.answer_ids for r in rows}
    results = {date: _results(log) for date, log in {log.date: log for log in logs}.items()}
    answers: dict[AnswerKey, Answer] = {}
    scores: Scores = {}
    for log in logs:
        config = results[log.date]["configs"].get(log.task, {})
        for where, sample in read_jsonl(log.path):
            try:
                of_sample = _answers(log.task, sample, config.get("repeats"), token_ids)
                answers |= {answer.key: answer for answer in of_sample}
                for metric, value in _numbers(sample).items():
                    values = scores.setdefault(log.task, {}).setdefault(metric, {})
                    values[int(sample["doc_id"])] = value
            except BROKEN as error:
                raise DataError(
                    f"{where}: not a sample of lm-eval ({error!r}); run lm_eval again"
                ) from error
    newest = results[max(results)]
    return Run(folder, answers, scores, newest["config"].get("model_dtype"), newest["model"])


def _answers(
    task: str,
    sample: dict[str, Any],
    repeats: int | None,
    token_ids: dict[tuple[str, int, str, str], tuple[int, ...] | None],
) -> Iterator[Answer]:
    """Generated answers of a sample; a log-likelihood has no generation settings."""
    doc = sample.get("doc")
    requests = zip(sample["arguments"].values(), sample["resps"], strict=True)
    for turn, (request, texts) in enumerate(requests, start=1):
        gen_kwargs = request.get("arg_1")
        if not isinstance(gen_kwargs, dict):
            continue
        given = request["arg_0"]
        # Chat servers are asked in messages, which lm-eval logs as a list.
        prompt = given if isinstance(given, str) else json.dumps(given)
        digest = hashlib.sha256(prompt.encode()).hexdigest()
        # Padding for data parallelism may answer a request once more than asked.
        for repeat, text in enumerate(texts[:repeats]):
            if not isinstance(text, str):
                raise TypeError(f"an answer that is a {type(text).__name__}")
            yield Answer(
                task=task,
                doc_id=int(sample["doc_id"]),
                turn=turn,
                repeat=repeat,
                prompt=prompt,
                prompt_sha256=digest,
                text=text,
                token_ids=token_ids.get((task, turn, digest, text)),
                gen_kwargs=gen_kwargs,
                doc=doc if isinstance(doc, dict) else None,
            )


def _numbers(sample: dict[str, Any]) -> dict[str, float]:
    """A sample's finite numbers by "metric,filter"."""
    values = {f"{name},{sample['filter']}": sample[name] for name in sample["metrics"]}
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _of_rows(folder: Path, rows: Sequence[TurnRecord]) -> Run:
    """A run without sample logs; rows stand in the order in which a batch happened to finish."""
    answers = [
        Answer(
            task=row.task,
            doc_id=row.doc_id,
            turn=row.turn,
            repeat=row.repeat,
            prompt=None,
            prompt_sha256=row.prompt_sha256,
            text=row.text,
            token_ids=row.answer_ids,
            gen_kwargs={},
        )
        for row in rows
    ]
    by_key = {answer.key: answer for answer in answers}
    return Run(folder, {key: by_key[key] for key in sorted(by_key)}, {}, None)


def _results(log: SampleLog) -> dict[str, Any]:
    """What is read of the results file of the run that wrote `log`; empty where there is none."""
    path = next(log.path.parent.glob(f"*_{log.date}.json"), None)
    empty: dict[str, Any] = {"configs": {}, "config": {}, "model": None}
    if path is None:
        return empty
    try:
        written = journal.parsed(journal.read(path))
        model = written.get("model_name_sanitized")
        # Files are named after it.
        usable = isinstance(model, str) and model.isprintable() and Path(model).name == model
        return empty | {
            "configs": {task: dict(config) for task, config in written.get("configs", {}).items()},
            "config": dict(written.get("config", {})),
            "model": model if usable else None,
        }
    except BROKEN as error:
        raise DataError(f"{path}: not a results file ({error!r}); run lm_eval again") from error
