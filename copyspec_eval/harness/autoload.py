"""Registers the models and the tasks in lm-eval. Imports neither torch nor transformers.

lm-eval 0.4 reads no entry points, so the start-up hook (`autoload/` in the repository) calls these
functions when lm-eval's own modules are imported, and `copyspec-eval run` calls them beforehand.
Both may happen: each function changes nothing the second time.
"""

import functools
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from copyspec_eval.paths import lm_eval_models, tasks_dir


def register_model() -> None:
    """Register our names for `--model`; a class is imported when it is first needed."""
    # get_model() loads the built-in models only into an empty registry, so they have to be first.
    import lm_eval.models  # noqa: F401
    from lm_eval.api.registry import model_registry

    for model in lm_eval_models():
        if model.name not in model_registry:
            model_registry.register(model.name, target=model.value)


@functools.cache
def register_tasks() -> None:
    """Make every new `TaskManager` index our tasks: after the built-in ones, before the user's."""
    from lm_eval.tasks import manager

    original = manager.TaskManager.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> None:
        call, ours = signature.bind(*args, **kwargs), tasks_dir()
        given = call.arguments.get("include_path") or []
        paths = [Path(path) for path in ([given] if isinstance(given, str | Path) else given)]
        # Only newer releases of lm-eval find task folders by entry points.
        discover = getattr(manager, "discover_plugin_task_paths", list)
        if ours not in [*paths, *map(Path, discover())]:
            call.arguments["include_path"] = [ours, *paths]
        original(*call.args, **call.kwargs)

    manager.TaskManager.__init__ = init


def watch_evaluations() -> None:
    from copyspec_eval.harness import evaluation  # noqa: F401, it wraps them


@functools.cache
def watch_command() -> None:
    """Record the command; have it load tasks of our classes first, to report wrong data at once."""
    from lm_eval.config.evaluate_config import EvaluatorConfig

    from copyspec_eval.harness.recorded import record_command

    make, process = EvaluatorConfig.__init__, EvaluatorConfig.process_tasks

    @functools.wraps(make)
    def init(config: Any, /, *args: Any, **kwargs: Any) -> None:
        make(config, *args, **kwargs)
        record_command(config)

    @functools.wraps(process)
    def process_tasks(config: Any, *args: Any, **kwargs: Any) -> Any:
        manager = process(config, *args, **kwargs)
        manager.load([task for task in config.tasks if _has_our_class(task, manager)])
        return manager

    EvaluatorConfig.__init__, EvaluatorConfig.process_tasks = init, process_tasks


def _has_our_class(task: Any, manager: Any) -> bool:
    """Whether a task is of our classes, by its name or by what is in its file."""
    if isinstance(task, Mapping):
        return str(getattr(task.get("class"), "__module__", "")).startswith("copyspec_eval.")
    try:
        path = Path(manager.task_index[task].yaml_path)
        return tasks_dir() in path.parents or "!function copyspec_eval." in path.read_text("utf-8")
    except (OSError, TypeError, ValueError):  # no file, or lm-eval says what is wrong with it
        return False
