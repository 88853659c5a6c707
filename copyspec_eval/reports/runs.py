"""A run as lm-eval leaves it in a folder: what was asked, answered and scored."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from copyspec_eval import journal, records
from copyspec_eval.errors import DataError
from copyspec_eval.manifest import RunManifest, read_manifests
from copyspec_eval.records import AnswerKey, TurnRecord
from copyspec_eval.reports.results import BROKEN, RecordedRun, are_shards, numbers, read_folder
from copyspec_eval.sources import read_jsonl

_TokenIds = dict[tuple[str, int, str, str], tuple[int, ...] | None]
Scores = dict[str, dict[str, dict[int, float]]]  # `{task: {"metric,filter": {doc_id: value}}}`


class _Log(NamedTuple):
    """A log of lm-eval's samples."""

    task: str
    date: str
    path: Path


@dataclass(frozen=True, slots=True)
class Answer:
    """A generated answer as it was scored; what was not recorded is None or empty."""

    key: AnswerKey
    prompt: str | None
    prompt_sha256: str
    text: str
    token_ids: tuple[int, ...] | None
    gen_kwargs: dict[str, Any]
    doc: dict[str, Any] | None = None

    @property
    def sampled(self) -> bool:
        """Whether it was drawn rather than decoded greedily, by lm-eval's rule."""
        chosen = self.gen_kwargs.get("do_sample")
        hot = float(self.gen_kwargs.get("temperature") or 0) > 0
        return hot if chosen is None else bool(chosen)


@dataclass(frozen=True, slots=True)
class Run:
    """A run's answers and scores, the former in order of the sample log, or of key without logs."""

    folder: Path
    answers: dict[AnswerKey, Answer]
    scores: Scores
    dtype: str | None = None
    model: str | None = None
    notes: tuple[str, ...] = ()


def read_run(folder: Path) -> Run:
    """The run in and below `folder`: of each task the newest sample log; without any, the rows.

    Of shards of one run, below the folder, all logs.
    """
    if not folder.is_dir():
        remedy = "give the one that lm_eval --output_path wrote to"
        raise DataError(f"{folder}: no such folder; {remedy}")
    notes: list[str] = []
    rows: list[TurnRecord] = []
    in_places: list[RecordedRun] = []
    unknown: list[str] = []
    for place in records.folders_with_rows(folder):
        in_place = records.read_folder(place, notes)
        rows += in_place
        try:
            in_places.append(read_folder(place, in_place, []))
        except DataError as error:  # the answers are there all the same
            unknown.append(f"whether the runs are whole is not known: {error}")
    rows.sort(key=lambda row: row.run_id)  # of an answer that two runs gave, the later one counts
    is_split = len(in_places) > 1 and not unknown and are_shards(in_places)
    shards = {run.folder: run.records for run in in_places} if is_split else {folder: rows}
    logs: list[_Log] = []
    unread: set[str] = set()
    for shard, in_shard in shards.items():
        newest = _newest_logs(shard)
        logs += newest
        unread |= {row.task for row in in_shard} - {log.task for log in newest}
    if not rows and not logs:
        remedy = f"run lm_eval with --output_path {folder} --log_samples"
        raise DataError(f"{folder}: no sample logs; {remedy}")
    if logs:
        run = _run_from_logs(folder, logs, rows)
    else:
        answers = [Answer(r.key, None, r.prompt_sha256, r.text, r.answer_ids, {}) for r in rows]
        by_key = {answer.key: answer for answer in answers}
        run = Run(folder, dict(sorted(by_key.items())), {})
    if logs and unread:
        tasks = ", ".join(sorted(unread))
        notes.append(f"{folder}: answers to {tasks} are left out: they have no sample log")
    # lm-eval writes a sample log after the results, so a run that was cut short has none.
    left_out = "; its answers are left out: other runs have sample logs" if logs else ""
    notes += [f"{note}{left_out}" for run in in_places for note in run.cut_short.values()]
    return replace(run, notes=(*notes, *unknown))


def read_arms(run: Run) -> dict[str, tuple[Run, Run]]:
    """By arm of a paired run the baseline's answers and the arm's; they have no scores."""
    folder, rows, manifests = run.folder, list[TurnRecord](), dict[str, RunManifest]()
    for place in records.folders_with_rows(folder):
        rows += records.read_folder(place, [])
        manifests |= read_manifests(place, [])
    drafted: dict[str, dict[AnswerKey, Answer]] = {}
    for row in sorted(rows, key=lambda row: row.run_id):
        if row.baseline is None:
            raise DataError(f"{folder}: no paired run; give two runs, or one with paired=true")
        if row.token_ids is None or len(row.token_ids) != row.counts.num_tokens:
            raise DataError(f"{folder}: its rows have no token ids; pass the original run")
        if answer := run.answers.get(row.key):
            text = row.answer if row.baseline.difference else answer.text
            arm = drafted.setdefault(_arm_name(row, manifests), {})
            arm[row.key] = replace(answer, token_ids=row.token_ids, text=text)
    if not drafted:
        raise DataError(f"{folder}: nothing to compare; give two runs, or one with paired=true")
    baseline = replace(run, scores={})
    return {
        name: (baseline, replace(baseline, answers=arm, notes=())) for name, arm in drafted.items()
    }


def _arm_name(row: TurnRecord, manifests: Mapping[str, RunManifest]) -> str:
    """The drafter, with all its settings if the run's manifest names several arms."""
    manifest = manifests.get(row.run_id)
    if manifest is None or "arms" not in manifest.spec.drafting:
        return row.drafter or row.backend
    drafting = manifest.spec.drafting
    names = ("gamma", "num_draft_tokens", "delta")
    return ", ".join([str(row.drafter), *(f"{name}={drafting[name]}" for name in names)])


def _newest_logs(folder: Path) -> list[_Log]:
    """Of each task the newest `samples_<task>_<date>.jsonl`; dates in names sort as text."""
    newest: dict[str, _Log] = {}
    for path in folder.rglob("samples_*_*.jsonl"):
        task, _, date = path.stem.removeprefix("samples_").rpartition("_")
        log = _Log(task, date, path)
        newest[task] = max(log, newest.get(task, log))
    return sorted(newest.values())


def _run_from_logs(folder: Path, logs: Sequence[_Log], rows: Sequence[TurnRecord]) -> Run:
    token_ids: _TokenIds = {(r.task, r.turn, r.prompt_sha256, r.text): r.answer_ids for r in rows}
    results = {log: _results(log) for log in logs}
    answers: dict[AnswerKey, Answer] = {}
    scores: Scores = {}
    for log in logs:
        config = results[log]["configs"].get(log.task, {})
        for where, sample in read_jsonl(log.path):
            try:
                for answer in _answers(log.task, sample, config.get("repeats"), token_ids):
                    answers[answer.key] = answer
                add_scores(scores, log.task, sample)
            except BROKEN as error:
                reason = f"not a sample of lm-eval ({error!r})"
                raise DataError(f"{where}: {reason}; run lm_eval again") from error
    newest = results[max(logs, key=lambda log: log.date)]
    return Run(folder, answers, scores, newest["config"].get("model_dtype"), newest["model"])


def _answers(
    task: str, sample: dict[str, Any], repeats: int | None, token_ids: _TokenIds
) -> Iterator[Answer]:
    """Generated answers of a sample; a log-likelihood has no generation settings."""
    doc = sample["doc"] if isinstance(sample.get("doc"), dict) else None
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
            key = AnswerKey(task, int(sample["doc_id"]), turn, repeat)
            tokens = token_ids.get((task, turn, digest, text))
            yield Answer(key, prompt, digest, text, tokens, gen_kwargs, doc)


def _results(log: _Log) -> dict[str, Any]:
    """Settings from the results file of a log's run; empty without such a file."""
    path = next(log.path.parent.glob(f"*_{log.date}.json"), None)
    try:
        written = journal.parsed(journal.read(path)) if path else {}
        model = written.get("model_name_sanitized")
        # Files are named after it.
        usable = isinstance(model, str) and model.isprintable() and Path(model).name == model
        configs = {task: dict(config) for task, config in written.get("configs", {}).items()}
        config = dict(written.get("config", {}))
        return {"configs": configs, "config": config, "model": model if usable else None}
    except BROKEN as error:
        raise DataError(f"{path}: not a results file ({error!r}); run lm_eval again") from error


def add_scores(scores: Scores, task: str, sample: Mapping[str, Any]) -> None:
    """Add the numbers among the metrics of a sample, as lm-eval logs it."""
    metrics = {f"{name},{sample['filter']}": sample[name] for name in sample["metrics"]}
    for metric, value in numbers(metrics).items():
        scores.setdefault(task, {}).setdefault(metric, {})[int(sample["doc_id"])] = value
