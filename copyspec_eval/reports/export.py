"""A run for other tools: FastChat's answers, EvalPlus's programs, TensorBoard's curves."""

import json
import math
import time
from contextlib import suppress
from pathlib import Path

from pandas import DataFrame

from copyspec_eval import journal
from copyspec_eval.errors import DataError, needing
from copyspec_eval.reports.conversations import conversations, document_fields
from copyspec_eval.reports.runs import Run
from copyspec_eval.reports.summary import METRICS, summarise
from copyspec_eval.scoring.humaneval.scores import as_samples
from copyspec_eval.scoring.judging import file_name

HUMANEVAL = "humaneval_evalplus"


def model_name(run: Run) -> str:
    """The model's name for files and rows; the folder's where the results have none."""
    return run.model or file_name(run.folder.resolve().name)


def write_fastchat(run: Run, folder: Path) -> list[Path]:
    """Write `<task>/model_answer/<model>.jsonl` below `folder`, a row per conversation."""
    model = model_name(run)
    written = []
    for task, in_task in conversations(run).items():
        rows = [
            {
                "question_id": each.question_id,
                "answer_id": f"{model}-{task}-{each.question_id}",
                "model_id": model,
                "choices": [{"index": 0, "turns": list(each.answers)}],
                "tstamp": time.time(),
            }
            for each in in_task
        ]
        path = journal.subfolder(folder, task, "model_answer") / f"{model}.jsonl"
        journal.replace(path, "".join(json.dumps(row) + "\n" for row in rows))
        written.append(path)
    return written


def write_evalplus(run: Run, folder: Path) -> Path:
    """Write `<model>.jsonl`: the program in each answer, as EvalPlus sanitises it; none is run."""
    with needing("EvalPlus", "this export", "humaneval"):
        from evalplus.sanitize import sanitize
    answers = [answer for key, answer in run.answers.items() if key.task == HUMANEVAL]
    if not answers:
        raise DataError(f"{run.folder}: no answers to {HUMANEVAL}; run that task")
    programs: list[tuple[str, str]] = []
    for answer in answers:
        types = {"task_id": str, "prompt": str, "entry_point": str}
        task_id, problem, entry_point = document_fields(answer, **types)
        beginning = f"{problem.strip()}\n"
        completes = (answer.prompt or "").endswith(beginning)
        program = beginning + answer.text if completes else answer.text
        # A ValueError for null bytes and lone surrogates, the other for too deep a nesting.
        with suppress(ValueError, RecursionError):
            program = sanitize(program, entry_point)
        programs.append((task_id, program))
    path = folder / f"{model_name(run)}.jsonl"
    journal.replace(path, as_samples(programs))
    return path


def write_tensorboard(turns: DataFrame, folder: Path) -> list[Path]:
    """Write a folder per run and arm of `read_turns`' frame, with event files of TensorBoard.

    Curves are `TASK turn N/METRIC` over the documents' numbers. The tab HParams compares the
    settings and the figures of all turns together.
    """
    with needing("TensorBoard", "this export", "tensorboard"):
        from torch.utils.tensorboard import SummaryWriter
    names = [metric.name for metric in METRICS]
    written = []
    for (run_id, drafter), of_run in turns.groupby(["run_id", "drafter"], sort=False):
        path = journal.subfolder(folder, f"{drafter}-{run_id}")
        for earlier in path.glob("events.*"):  # else TensorBoard shows both exports in one curve
            earlier.unlink()
        with SummaryWriter(path) as writer:
            for (task, turn, document), rows in of_run.groupby(["task", "turn", "doc_id"]):
                figures = summarise(rows)
                for name in names:
                    if (value := figures[name]) is not None and math.isfinite(value):
                        writer.add_scalar(f"{task} turn {turn}/{name}", value, document)
            settings = of_run.filter(like="spec.").iloc[0].dropna().map(str)
            figures = {key: value for key, value in summarise(of_run).items() if value is not None}
            named = settings.rename(lambda name: name.removeprefix("spec.")).to_dict()
            writer.add_hparams(named, figures, run_name=".")
        written.append(path)
    return written
