"""Registers the models and the tasks in lm-eval. Imports neither torch nor transformers.

lm-eval 0.4 reads no entry points, so the start-up hook (`autoload/` in the repository) calls these
functions when lm-eval's own modules are imported, and `copyspec-eval run` calls them beforehand.
Both may happen: each function changes nothing the second time.
"""

from __future__ import annotations

import functools
import inspect
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
    """Make every new `TaskManager` index our tasks: after the built-in ones, before the user's.

    `--tasks` then loads tasks of our classes at once, to report wrong data before a model loads.
    """
    from lm_eval.tasks import _yaml_loader
    from lm_eval.tasks.manager import TaskManager

    original, match = TaskManager.__init__, TaskManager.match_tasks
    load_yaml, signature = _yaml_loader.load_yaml, inspect.signature(original)

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> None:
        call = signature.bind(*args, **kwargs)
        call.arguments["include_path"] = _with_our_tasks(call.arguments.get("include_path"))
        original(*call.args, **call.kwargs)

    @functools.wraps(match)
    def match_tasks(manager: Any, task_list: list[str]) -> list[str]:
        names: list[str] = match(manager, task_list)
        manager.load([name for name in names if _is_ours(manager.task_index[name].yaml_path)])
        return names

    @functools.wraps(load_yaml)
    def load_and_check(*args: Any, **kwargs: Any) -> dict[str, Any]:
        # An included file, which is loaded by the same name, need not be whole.
        _yaml_loader.load_yaml = load_yaml
        try:
            config: dict[str, Any] = load_yaml(*args, **kwargs)
        finally:
            _yaml_loader.load_yaml = load_and_check
        task_class = config.get("class")
        # Only `--tasks FILE.yaml` has classes resolved here; the manager loads by another name.
        if isinstance(task_class, type) and task_class.__module__.startswith("copyspec_eval."):
            task_class(dict(config))
        return config

    TaskManager.__init__, TaskManager.match_tasks = init, match_tasks
    _yaml_loader.load_yaml = load_and_check


def watch_evaluations() -> None:
    from copyspec_eval.harness import evaluation  # noqa: F401, it wraps them


def watch_command() -> None:
    from copyspec_eval.harness import recorded

    recorded.watch_command()


def _is_ours(path: Any) -> bool:
    try:
        is_below = tasks_dir() in Path(path).parents
        return is_below or "!function copyspec_eval." in Path(path).read_text("utf-8")
    except (OSError, TypeError, ValueError):  # no file, or lm-eval says what is wrong with it
        return False


def _with_our_tasks(include_path: Any) -> Any:
    """`include_path` with our folder in front, unless lm-eval or the user has it already."""
    from lm_eval.tasks import manager

    given = include_path if isinstance(include_path, (list, tuple)) else [include_path]
    paths, ours = [Path(path) for path in given if path], tasks_dir()
    # Only newer releases of lm-eval find task folders by entry points.
    discover = getattr(manager, "discover_plugin_task_paths", list)
    return include_path if ours in [*paths, *map(Path, discover())] else [ours, *paths]
