"""The settings, tasks and output folder of the running evaluation, which lm-eval hides from models.

Importing this module wraps lm-eval's `simple_evaluate` and `evaluate`: their arguments are known
here while they run, and those of our models are printed and written as `recorded` returns them. A
model used by hand has none. Imports neither torch nor transformers.
"""

import contextlib
import functools
import hashlib
import inspect
import itertools
import json
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, cast

from lm_eval import evaluator, utils
from lm_eval.evaluator_utils import get_sample_size

from copyspec_eval import journal
from copyspec_eval.errors import CopySpecError, DataError, OptionError
from copyspec_eval.harness.recorded import is_ours, parse_arguments, recorded, with_environment
from copyspec_eval.redaction import mask_logs, masked, without_secrets

_SETTINGS = (
    *("limit", "samples", "num_fewshot", "fewshot_as_multiturn", "apply_chat_template"),
    *("system_instruction", "gen_kwargs", "random_seed", "numpy_random_seed"),
    *("torch_random_seed", "fewshot_random_seed"),
)
_TASK_SETTINGS = ("num_fewshot", "repeats", "generation_kwargs")
# The rows of an evaluation that has ended, and its output folder, until lm-eval prints its tables.
_ENDED: list[tuple[list[Any], Path | None]] = []
# The arguments of lm-eval's functions that are running, by the function's name.
_CALLS: ContextVar[dict[str, dict[str, Any]]] = ContextVar("calls", default={})  # noqa: B039


def output_folder() -> Path | None:
    """The folder of lm-eval's `--output_path`, which only its EvaluationTracker gets."""
    tracker = _arguments("simple_evaluate").get("evaluation_tracker")
    path = Path(tracker.output_path) if tracker and tracker.output_path else None
    return path.parent if path and path.suffix == ".json" else path


def ended(rows: list[Any]) -> None:
    """Have figures of the rows printed under lm-eval's tables, and the page written."""
    _ENDED.append((rows, output_folder()))


def check_output_folder() -> None:
    """Refuse an output folder that cannot be written, without making it."""
    if (folder := output_folder()) is None:
        return
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        TemporaryFile(dir=existing).close()
    except OSError as error:
        raise DataError(
            f"{existing}: cannot be written ({error.strerror}); choose another --output_path"
        ) from error


def evaluation_settings() -> dict[str, Any]:
    arguments = _arguments("simple_evaluate")
    settings = {name: arguments[name] for name in _SETTINGS if name in arguments}
    if "gen_kwargs" in settings:
        settings["gen_kwargs"] = recorded(parse_arguments(settings["gen_kwargs"])) or None
    return settings


def task_settings(names: set[str]) -> dict[str, dict[str, Any]]:
    """Of each task its version, shots, repeats, request settings, and a hash of its definition."""
    tasks, settings = _tasks(), {}
    for name in sorted(names & tasks.keys()):
        config: dict[str, Any] = tasks[name].dump_config()
        # Other fields are recorded elsewhere, or differ with the model.
        definition = {k: v for k, v in config.items() if k not in (*_TASK_SETTINGS, "metadata")}
        text = json.dumps(definition, sort_keys=True, default=lambda value: type(value).__name__)
        settings[name] = {
            "version": tasks[name].VERSION,
            **recorded({key: config.get(key) for key in _TASK_SETTINGS}, _TASK_SETTINGS),
            "definition_sha256": hashlib.sha256(text.encode()).hexdigest()[:12],
        }
    return settings


def document_number(task: str, doc_id: int | None) -> int | None:
    """A document's number in its task; `doc_id` counts the asked ones alone with `--samples`."""
    asked = (_arguments("evaluate").get("samples") or {}).get(task)
    return sorted(set(asked))[doc_id] if asked and doc_id is not None else doc_id


def num_answers() -> int | None:
    """How many generated answers the evaluation asks for, over all ranks; None without one."""
    if not (call := _arguments("evaluate")):
        return None
    total = 0
    for name, task in _tasks().items():
        asked = [each for each in task.instances if each.request_type.startswith("generate_until")]
        answers = sum(each.repeats or 1 for each in asked)
        # These are of this rank's documents. Only several ranks need to know how many there are in
        # all: lm-eval may prepare the documents anew for it.
        if asked and call["lm"].world_size > 1:
            limit, samples = call["limit"] or None, (call["samples"] or {}).get(name)
            documents = samples or range(len(task.eval_docs))[: get_sample_size(task, limit)]
            answers = answers // len({each.doc_id for each in asked}) * len(set(documents))
        total += answers
    return total


def _tasks() -> dict[str, Any]:
    given: dict[Any, Any] = _arguments("evaluate").get("task_dict", {})
    tasks: dict[str, Any] = {}
    for name, value in given.get("tasks", given).items():
        tasks |= value if isinstance(value, Mapping) else {name: value}
    return tasks


def _arguments(function: str) -> dict[str, Any]:
    return _CALLS.get().get(function, {})


def _check_saving(tracker: Any) -> None:
    """Fail if the evaluation's files are not written whole, where lm-eval only warns."""
    if (folder := output_folder()) is None or "save_results_samples" in vars(tracker):
        return
    save_results, save_samples = tracker.save_results_aggregated, tracker.save_results_samples

    def results_saved(results: dict[str, Any], samples: dict[str, Any] | None = None) -> None:
        save_results(results=results, samples=samples)
        check(f"*_{tracker.date_id}.json", lambda content: bool(journal.parsed(content)))

    def samples_saved(task_name: str, samples: Any) -> None:
        save_samples(task_name=task_name, samples=samples)
        name = f"samples_{task_name}_{tracker.date_id}.jsonl"
        check(name, lambda content: content.count(b"\n") == len(samples))

    def check(name: str, is_whole: Callable[[bytes], bool]) -> None:
        path = next(folder.rglob(name), folder / name)
        with contextlib.suppress(ValueError):
            if is_whole(journal.read(path)):
                return
        raise DataError(f"{path}: not written completely; free space there, and start again")

    tracker.save_results_aggregated, tracker.save_results_samples = results_saved, samples_saved


def _clean(results: dict[str, Any], call: dict[str, Any]) -> dict[str, Any]:
    given = {**(call["metadata"] or {}), **parse_arguments(call["model_args"])}
    for config in (results["config"], *results["configs"].values()):
        for name in ("model_args", "gen_kwargs", "generation_kwargs"):
            if isinstance(settings := config.get(name), Mapping):
                config[name] = recorded(settings)
        # lm-eval puts all arguments of the model here.
        if metadata := config.get("metadata"):
            shown = recorded({name: metadata[name] for name in given if name in metadata})
            config["metadata"] = metadata | shown
    for sample in itertools.chain(*results.get("samples", {}).values()):
        sample["arguments"] = [
            [recorded(part) if isinstance(part, Mapping) else part for part in request]
            for request in sample["arguments"]
        ]
    if tracker := call["evaluation_tracker"]:
        # The folder has the model's name, which may be a URL.
        logged = tracker.general_config_tracker
        logged.model_name = masked(logged.model_name)
        logged.model_name_sanitized = utils.sanitize_model_name(logged.model_name)
    return cast("dict[str, Any]", _without_secrets(results))


def _without_secrets(value: Any) -> Any:
    """`value`, changed in place where a string in it has a secret."""
    if isinstance(value, dict):
        value.update({key: _without_secrets(inner) for key, inner in value.items()})
    elif isinstance(value, list):
        value[:] = map(_without_secrets, value)
    elif type(value) is tuple:
        return tuple(map(_without_secrets, value))
    return without_secrets(value) if isinstance(value, str) else value


def _with_closing(make_table: Callable[..., str]) -> Callable[..., str]:
    """Our table of the evaluation that has ended, and a sentence on what each drafter gained."""

    @functools.wraps(make_table)
    def tables(results: dict[str, Any], column: str = "results", **options: Any) -> str:
        table = make_table(results, column, **options)
        if not _ENDED or (column != "groups" and "groups" in results):
            return table
        from copyspec_eval.reports.page.build import write_page
        from copyspec_eval.reports.tables import gains, run_table

        rows = [row for more, _ in _ENDED for row in more]
        _, folder = _ENDED[0]
        _ENDED.clear()
        page = ""
        if folder:
            try:
                page = f" → {write_page(folder)}"
            except (CopySpecError, OSError) as error:  # the run itself has succeeded
                page = f" (no page: {error})"
        closing = [gain + page for gain in gains(rows)] or [page.strip()]
        return "\n".join([table, run_table(rows), *closing])

    return tables


def _wrap(function: Callable[..., Any]) -> None:
    """Wrap a function of `lm_eval.evaluator`, there and wherever it was imported by name."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        given = call.arguments
        is_whole = function.__name__ == "simple_evaluate" and is_ours(given["model"])
        if is_whole:
            mask_logs()
            _ENDED.clear()
            # lm-eval prints these, and they print as they are recorded.
            if isinstance(given["model"], str):
                given["model_args"] = with_environment(parse_arguments(given["model_args"]))
                for name in ("batch_size", "device"):
                    if name in given["model_args"] and given[name] is not None:
                        raise OptionError(f"pass {name} as --{name}, not in --model_args")
            if given["gen_kwargs"]:
                given["gen_kwargs"] = parse_arguments(given["gen_kwargs"])
        token = _CALLS.set(_CALLS.get() | {function.__name__: given})
        try:
            if is_whole:
                _check_saving(given["evaluation_tracker"])
            results = function(*call.args, **call.kwargs)
        finally:
            _CALLS.reset(token)
        return _clean(results, given) if is_whole and results else results

    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        for alias in [alias for alias, value in names.items() if value is function]:
            names[alias] = wrapper


utils.make_table = _with_closing(utils.make_table)
_wrap(evaluator.simple_evaluate)
_wrap(evaluator.evaluate)
