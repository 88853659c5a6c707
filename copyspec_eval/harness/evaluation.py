"""The settings, tasks and output folder of the running evaluation, which lm-eval hides from models.

`simple_evaluate` and `evaluate` hold them in local variables while they run a model, so they are
looked up in the callers' frames. Without such a caller (a model used by hand) there are none.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from lm_eval.loggers import EvaluationTracker

from copyspec_eval.redaction import redacted

_SETTINGS = (
    "limit",
    "samples",
    "num_fewshot",
    "fewshot_as_multiturn",
    "apply_chat_template",
    "system_instruction",
    "gen_kwargs",
    "random_seed",
    "numpy_random_seed",
    "torch_random_seed",
    "fewshot_random_seed",
)
# Of a task's config: those that are settings of their own, and what differs with the model's.
_TASK_SETTINGS = ("num_fewshot", "repeats", "generation_kwargs")
_NO_DEFINITION = {*_TASK_SETTINGS, "metadata"}


def output_folder() -> Path | None:
    """The folder of lm-eval's `--output_path`, which it gives to its EvaluationTracker alone."""
    tracker = _tracker()
    path = Path(tracker.output_path) if tracker and tracker.output_path else None
    return path.parent if path and path.suffix == ".json" else path


def blank_secrets() -> None:
    """Have lm-eval's results file of the running evaluation written without the secrets in it."""
    tracker: Any = _tracker()
    if tracker is None or "save_results_aggregated" in vars(tracker):
        return
    save = tracker.save_results_aggregated

    def save_blanked(results: dict[str, Any], samples: dict[str, Any] | None = None) -> None:
        if "config" in results:
            results["config"] = redacted(results["config"])
        save(results=results, samples=samples)

    tracker.save_results_aggregated = save_blanked


def evaluation_settings() -> dict[str, Any]:
    """The arguments of `simple_evaluate` that decide what is asked, as JSON values."""
    arguments = _locals_of("simple_evaluate")
    return {name: arguments[name] for name in _SETTINGS if name in arguments}


def task_settings(names: set[str]) -> dict[str, dict[str, Any]]:
    """Of each task its version, shots, repeats, request settings, and a hash of its definition."""
    tasks = _locals_of("evaluate").get("eval_tasks")
    if not isinstance(tasks, Mapping):
        return {}
    return {name: _of_task(tasks[name]) for name in sorted(names & tasks.keys())}


def document_number(task: str, doc_id: int | None) -> int | None:
    """Which document of its task the running evaluation means by `doc_id`.

    With `--samples`, lm-eval numbers those that are asked, in ascending order, from 0.
    """
    asked = (_locals_of("evaluate").get("samples") or {}).get(task)
    return sorted(set(asked))[doc_id] if asked and doc_id is not None else doc_id


def num_answers() -> int | None:
    """How many generated answers the evaluation asks for, over all ranks; None without one."""
    evaluation = _locals_of("evaluate")
    try:
        return sum(
            _num_answers(task, limit, (evaluation["samples"] or {}).get(name), evaluation["lm"])
            for (name, task), limit in zip(
                evaluation["eval_tasks"].items(), evaluation["limits"], strict=True
            )
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        # They are lm-eval's own variables, and no run shall fail for a note that needs them.
        return None


def _num_answers(task: Any, limit: float | None, samples: Any, lm: Any) -> int:
    """Those of a task, whose requests are built for the documents of this rank alone."""
    asked = [each for each in task.instances if each.request_type.startswith("generate_until")]
    answers = sum(each.repeats or 1 for each in asked)
    if lm.world_size == 1 or not asked:
        return answers
    # Looked at on several ranks alone: lm-eval may prepare the documents anew for it.
    documents = len(set(samples)) if samples else len(task.eval_docs)
    if limit and not samples:
        documents = min(int(limit), documents)
    return answers // len({each.doc_id for each in asked}) * documents


def _of_task(task: Any) -> dict[str, Any]:
    config: dict[str, Any] = task.dump_config()
    definition = {name: value for name, value in config.items() if name not in _NO_DEFINITION}
    text = json.dumps(definition, sort_keys=True, default=lambda value: type(value).__name__)
    return {
        "version": task.VERSION,
        **{name: config.get(name) for name in _TASK_SETTINGS},
        "definition_sha256": hashlib.sha256(text.encode()).hexdigest()[:12],
    }


def _tracker() -> EvaluationTracker | None:
    for frame in _callers():
        for value in frame.f_locals.values():
            if isinstance(value, EvaluationTracker):
                return value
    return None


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _locals_of(function: str) -> dict[str, Any]:
    """Local variables of one of lm-eval's functions; empty if it is not among the callers."""
    for frame in _callers():
        place = frame.f_globals.get("__name__"), frame.f_code.co_name
        if place == ("lm_eval.evaluator", function):
            return frame.f_locals
    return {}
