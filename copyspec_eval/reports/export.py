"""A run in the formats of other tools: FastChat's answers, EvalPlus's programs."""

import json
import time
from contextlib import suppress
from pathlib import Path

from copyspec_eval import journal
from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.reports.conversations import conversations, document_fields
from copyspec_eval.reports.runs import Run
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
    try:
        from evalplus.sanitize import sanitize
    except ImportError as error:
        needed = "this export needs EvalPlus; pip install 'copyspec-eval[humaneval]'"
        raise OptionError(needed) from error
    answers = [answer for answer in run.answers.values() if answer.task == HUMANEVAL]
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
