"""A run as lm-eval leaves it in a folder: what was asked, answered and scored."""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from copyspec_eval import journal, records
from copyspec_eval.errors import DataError
from copyspec_eval.manifest import RunManifest, read_manifests
from copyspec_eval.records import AnswerKey, TurnRecord
from copyspec_eval.reports.summary import METRICS
from copyspec_eval.sources import read_jsonl

TURN_SCORE = re.compile(r"(.+)_turn(\d+)")  # the name of a score that belongs to one turn
BROKEN = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading JSON of an unexpected shape raises."""

# `results_DATE.json`; where `--output_path` is `NAME.json`, `NAME_DATE.json`.
_FILE = re.compile(r"results_.*|.*_\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(\.\d+)?")
_OURS = "copyspec"  # what our models are called in lm-eval begins with this
_NO_SCORES = {name for metric in METRICS for name in metric.names} | {"answered", "sample_len"}

RunScores = dict[tuple[str, str], dict[str, float]]
_Manifests = Mapping[str, RunManifest]


class Results(NamedTuple):
    """What results files say; a later run of equal settings continues one that was cut short."""

    scores: RunScores  # by run id and task, then by metric
    documents: dict[str, int]  # by task, how many it has, asked or not
    last_runs: dict[str, str]  # by run id, the last run that continued it, often itself
    cut_short: dict[str, str]  # a note on each run that neither reached its end nor was continued


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
    rows = itertools.chain.from_iterable(by_place.values())
    return by_place, sorted(rows, key=lambda row: row.run_id)


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
                add_scores(scores, task, sample)
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


def read_results(folder: Path, rows: list[TurnRecord], manifests: _Manifests) -> Results:
    """The results files in `folder` and below.

    A file belongs to the run that it names, and to its other arms. A task that was entirely in
    lm-eval's cache belongs to the latest run before it that answered it, in the same arm. A file
    that names no run, and no model of another kind, belongs to the latest run.
    """
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
    return Results(scores, documents, *_endings(folder, rows, manifests, scores, whole))


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
    """`last_runs` and `cut_short` of `Results`; a results file names the runs in `whole`."""
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


def add_scores(scores: Scores, task: str, sample: Mapping[str, Any]) -> None:
    """Add the numbers among the metrics of a sample, as lm-eval logs it."""
    metrics = {f"{name},{sample['filter']}": sample[name] for name in sample["metrics"]}
    for metric, value in numbers(metrics).items():
        scores.setdefault(task, {}).setdefault(metric, {})[int(sample["doc_id"])] = value


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
