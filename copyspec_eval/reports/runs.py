"""A run as lm-eval leaves it in a folder: what was asked, what was answered, how it scored."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from copyspec_eval import journal, records
from copyspec_eval.errors import DataError
from copyspec_eval.manifest import RunManifest, read_manifests
from copyspec_eval.records import AnswerKey, TurnRecord
from copyspec_eval.reports.results import BROKEN, numbers, read_results
from copyspec_eval.sources import read_jsonl

_RUN_FILES = {
    "results_*.json": "lm-eval's results",
    "samples_*.jsonl": "prompts, answers and scores",
    "turns*.jsonl": "counts, times and tokens of every turn",
    "report.html": "a page for the browser: charts, and every answer with its copied text",
    "manifest.json": "hardware, versions, settings and command",
}

_TokenIds = dict[tuple[str, int, str, str], tuple[int, ...] | None]
_Logs = dict[str, tuple[str, Path]]
Scores = dict[str, dict[str, dict[int, float]]]  # `{task: {"metric,filter": {doc_id: value}}}`


@dataclass(frozen=True, slots=True)
class Answer:
    """A generated answer as it was scored; what was not recorded is None or empty."""

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
        return AnswerKey(self.task, self.doc_id, self.turn, self.repeat)

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
    """The run in and below `folder`: of each task the newest sample log; without any, the rows."""
    if not folder.is_dir():
        remedy = "give the one that lm_eval --output_path wrote to"
        raise DataError(f"{folder}: no such folder; {remedy}")
    notes: list[str] = []
    by_place, rows = _read_rows(folder, notes)
    logs = _newest_logs(folder)
    if not rows and not logs:
        remedy = f"run lm_eval with --output_path {folder} --log_samples"
        raise DataError(f"{folder}: no sample logs; {remedy}")
    if logs:
        run = _run_from_logs(folder, logs, rows)
    else:
        answers = [Answer(*r.key, None, r.prompt_sha256, r.text, r.answer_ids, {}) for r in rows]
        by_key = {answer.key: answer for answer in answers}
        run = Run(folder, dict(sorted(by_key.items())), {})
    unread = sorted({row.task for row in rows} - logs.keys())
    if logs and unread:
        tasks = ", ".join(unread)
        notes.append(f"{folder}: answers to {tasks} are left out: they have no sample log")
    # lm-eval writes a sample log after the results, so a run that was cut short has none.
    left_out = "; its answers are left out: other runs have sample logs" if logs else ""
    for place, in_place in sorted(by_place.items()):
        try:
            results = read_results(place, in_place, read_manifests(place, []))
            notes += (f"{note}{left_out}" for note in results.cut_short.values())
        except DataError as error:  # the answers are there all the same
            notes.append(f"whether the runs are whole is not known: {error}")
    return replace(run, notes=tuple(notes))


def _read_rows(
    folder: Path, notes: list[str]
) -> tuple[dict[Path, list[TurnRecord]], list[TurnRecord]]:
    """The rows by place, and all of them: of an answer that two runs gave, the later one counts."""
    by_place: dict[Path, list[TurnRecord]] = {}
    for file in sorted(folder.rglob("turns*.jsonl")):
        by_place.setdefault(file.parent, []).extend(records.read(file, notes))
    return by_place, sorted(chain.from_iterable(by_place.values()), key=lambda row: row.run_id)


def read_arms(run: Run) -> dict[str, tuple[Run, Run]]:
    """By arm of a paired run the baseline's answers and the arm's; they have no scores."""
    folder = run.folder
    by_place, rows = _read_rows(folder, [])
    manifests: dict[str, RunManifest] = {}
    for place in by_place:
        manifests |= read_manifests(place, [])
    drafted: dict[str, dict[AnswerKey, Answer]] = {}
    for row in rows:
        if row.baseline is None:
            raise DataError(f"{folder}: no paired run; give two runs, or one with paired=true")
        if row.token_ids is None or len(row.token_ids) != row.counts.num_tokens:
            raise DataError(f"{folder}: its rows are without tokens; give the run as it was made")
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


def listing(folder: Path) -> str:
    newest = {name: max(folder.rglob(name), default=None) for name in _RUN_FILES}
    places = {path.parent / name: _RUN_FILES[name] for name, path in newest.items() if path}
    return "".join(f"{place}: {what}\n" for place, what in places.items())


def _newest_logs(folder: Path) -> _Logs:
    """Date and path of lm-eval's `samples_<task>_<date>.jsonl`; dates in names sort as text."""
    newest: _Logs = {}
    for path in folder.rglob("samples_*_*.jsonl"):
        task, _, date = path.stem.removeprefix("samples_").rpartition("_")
        newest[task] = max((date, path), newest.get(task, (date, path)))
    return dict(sorted(newest.items()))


def _run_from_logs(folder: Path, logs: _Logs, rows: Sequence[TurnRecord]) -> Run:
    token_ids: _TokenIds = {(r.task, r.turn, r.prompt_sha256, r.text): r.answer_ids for r in rows}
    results = {date: _results(path.parent, date) for date, path in dict(logs.values()).items()}
    answers: dict[AnswerKey, Answer] = {}
    scores: Scores = {}
    for task, (date, path) in logs.items():
        config = results[date]["configs"].get(task, {})
        for where, sample in read_jsonl(path):
            try:
                for answer in _answers(task, sample, config.get("repeats"), token_ids):
                    answers[answer.key] = answer
                metrics = {f"{name},{sample['filter']}": sample[name] for name in sample["metrics"]}
                for metric, value in numbers(metrics).items():
                    values = scores.setdefault(task, {}).setdefault(metric, {})
                    values[int(sample["doc_id"])] = value
            except BROKEN as error:
                reason = f"not a sample of lm-eval ({error!r})"
                raise DataError(f"{where}: {reason}; run lm_eval again") from error
    newest = results[max(results)]
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
            key = task, int(sample["doc_id"]), turn, repeat
            tokens = token_ids.get((task, turn, digest, text))
            yield Answer(*key, prompt, digest, text, tokens, gen_kwargs, doc)


def _results(folder: Path, date: str) -> dict[str, Any]:
    """Settings from the results file of the run of that date; empty without such a file."""
    path = next(folder.glob(f"*_{date}.json"), None)
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
