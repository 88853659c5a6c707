"""The settings, tasks and output folder of the running evaluation, which lm-eval hides from models.

Importing this module wraps lm-eval's `simple_evaluate` and `evaluate`, so that their arguments are
known here while they run. A model used by hand has none. Imports neither torch nor transformers.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from lm_eval.evaluator_utils import get_sample_size
from lm_eval.utils import simple_parse_args_string

from copyspec_eval import journal
from copyspec_eval.errors import DataError
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

_CALLS: ContextVar[dict[str, dict[str, Any]] | None] = ContextVar("calls", default=None)
"""The arguments of lm-eval's functions that are running, by the function's name."""


def output_folder() -> Path | None:
    """The folder of lm-eval's `--output_path`, which it gives to its EvaluationTracker alone."""
    tracker = _arguments("simple_evaluate").get("evaluation_tracker")
    path = Path(tracker.output_path) if tracker and tracker.output_path else None
    return path.parent if path and path.suffix == ".json" else path


def blank_secrets() -> None:
    """Have lm-eval's results file of the running evaluation written without the secrets in it."""
    tracker = _arguments("simple_evaluate").get("evaluation_tracker")
    if tracker is None or "save_results_aggregated" in vars(tracker):
        return
    save = tracker.save_results_aggregated

    def save_blanked(results: dict[str, Any], samples: dict[str, Any] | None = None) -> None:
        if "config" in results:
            results["config"] = redacted(results["config"])
        save(results=results, samples=samples)

    tracker.save_results_aggregated = save_blanked


def check_saving() -> None:
    """Have the running evaluation fail if its files are not written whole; lm-eval only warns."""
    tracker = _arguments("simple_evaluate").get("evaluation_tracker")
    if tracker is None or not tracker.output_path or "save_results_samples" in vars(tracker):
        return
    save_results, save_samples = tracker.save_results_aggregated, tracker.save_results_samples
    folder = output_folder() or Path()

    def results_saved(results: dict[str, Any], samples: dict[str, Any] | None = None) -> None:
        save_results(results=results, samples=samples)
        _check_saved(folder, f"*_{tracker.date_id}.json", journal.parsed)

    def samples_saved(task_name: str, samples: Any) -> None:
        save_samples(task_name=task_name, samples=samples)

        def count(content: bytes) -> None:
            if content.count(b"\n") != len(samples):
                raise ValueError

        _check_saved(folder, f"samples_{task_name}_{tracker.date_id}.jsonl", count)

    tracker.save_results_aggregated, tracker.save_results_samples = results_saved, samples_saved


def _check_saved(folder: Path, name: str, check: Callable[[bytes], object]) -> None:
    path = next(folder.rglob(name), folder / name)
    try:
        check(journal.read(path))
    except ValueError as error:
        raise DataError(
            f"{path}: was not written whole; free space there, and start again"
        ) from error


def evaluation_settings() -> dict[str, Any]:
    """The arguments of `simple_evaluate` that decide what is asked, as JSON values."""
    arguments = _arguments("simple_evaluate")
    settings = {name: arguments[name] for name in _SETTINGS if name in arguments}
    if isinstance(gen_kwargs := settings.get("gen_kwargs"), str):
        settings["gen_kwargs"] = simple_parse_args_string(gen_kwargs) or None
    return settings


def task_settings(names: set[str]) -> dict[str, dict[str, Any]]:
    """Of each task its version, shots, repeats, request settings, and a hash of its definition."""
    tasks = _tasks()
    return {name: _of_task(tasks[name]) for name in sorted(names & tasks.keys())}


def document_number(task: str, doc_id: int | None) -> int | None:
    """Which document of its task the running evaluation means by `doc_id`.

    With `--samples`, lm-eval numbers those that are asked, in ascending order, from 0.
    """
    asked = (_arguments("evaluate").get("samples") or {}).get(task)
    return sorted(set(asked))[doc_id] if asked and doc_id is not None else doc_id


def num_answers() -> int | None:
    """How many generated answers the evaluation asks for, over all ranks; None without one."""
    call = _arguments("evaluate")
    if not call:
        return None
    samples = call["samples"] or {}
    return sum(
        _num_answers(task, call["limit"], samples.get(name), call["lm"])
        for name, task in _tasks().items()
    )


def _num_answers(task: Any, limit: float | None, samples: Any, lm: Any) -> int:
    """Those of a task, whose requests are built for the documents of this rank alone."""
    asked = [each for each in task.instances if each.request_type.startswith("generate_until")]
    answers = sum(each.repeats or 1 for each in asked)
    if lm.world_size == 1 or not asked:
        return answers
    # Looked at on several ranks alone: lm-eval may prepare the documents anew for it.
    documents = len(set(samples)) if samples else len(task.eval_docs)
    if limit and not samples:
        documents = min(get_sample_size(task, limit), documents)
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


def _tasks() -> dict[str, Any]:
    """The tasks of the running evaluation by name; older callers nest them in groups."""
    given: dict[Any, Any] = _arguments("evaluate").get("task_dict", {})
    if "tasks" in given:
        return dict(given["tasks"])
    tasks: dict[str, Any] = {}
    for name, value in given.items():
        tasks |= value if isinstance(value, Mapping) else {name: value}
    return tasks


def _arguments(function: str) -> dict[str, Any]:
    """Those of lm-eval's `function`, defaults included; empty if it does not run."""
    return (_CALLS.get() or {}).get(function, {})


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        token = _CALLS.set((_CALLS.get() or {}) | {function.__name__: call.arguments})
        try:
            return function(*args, **kwargs)
        finally:
            _CALLS.reset(token)

    return wrapper


def _wrap(name: str) -> None:
    """Wrap a function of `lm_eval.evaluator`, there and where it was imported by name before."""
    from lm_eval import evaluator

    function = getattr(evaluator, name)
    wrapper = _wrapped(function)
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        for alias in [alias for alias, value in names.items() if value is function]:
            names[alias] = wrapper


_wrap("simple_evaluate")
_wrap("evaluate")
