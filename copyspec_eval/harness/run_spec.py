"""The `RunSpec` of a loaded lm-eval model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from copyspec_eval import provenance
from copyspec_eval.decoding.model_copy import weights_hash
from copyspec_eval.harness.evaluation import evaluation_settings, task_settings
from copyspec_eval.harness.recorded import recorded
from copyspec_eval.harness.recorder import Asked
from copyspec_eval.manifest import RunSpec
from copyspec_eval.redaction import masked

# Fields of their own in a `RunSpec`.
_ELSEWHERE = {"self", "pretrained", "model", "device", "dtype", "batch_size"}


def run_spec(
    lm: Any,
    *,
    backend: str,
    model: object,
    arguments: Mapping[str, Any],
    batch_size: int | str,
    asked: Iterable[Asked],
    processors: Callable[[dict[str, Any]], Collection[str] | None],
    drafting: Mapping[str, Any] | None = None,
) -> RunSpec:
    """What `lm`, loaded, is asked to do in the evaluation under way.

    `model` is what it loaded, by name or not; `arguments` are the user's, without those in
    `drafting`; `processors` names the logits processors of a request's settings, if known.
    """
    loaded = getattr(lm, "model", None)
    config = getattr(loaded, "config", None)
    requests = {each.instance.task_name or "": each.settings for each in asked}
    tasks = task_settings(set(requests))
    return RunSpec(
        backend=backend,
        model=masked(model) if isinstance(model, str) else f"({type(loaded).__name__})",
        model_args=_resolved(lm, arguments, config, _ELSEWHERE | set(drafting or ())),
        drafting=_plain(dict(drafting or {})),
        batch_size=batch_size,
        device=str(getattr(lm, "device", "unknown")),
        dtype=str(getattr(loaded, "dtype", "unknown")).removeprefix("torch."),
        weights=weights_hash(loaded) if isinstance(loaded, torch.nn.Module) else None,
        quantization=_plain(getattr(config, "quantization_config", None)),
        ranks=lm.world_size,
        threads=torch.get_num_threads(),
        hardware=provenance.hardware(),
        environment=provenance.kernel_environment(),
        versions=provenance.versions(),
        code=provenance.code_commit(),
        evaluation=_plain(evaluation_settings()),
        tasks=_plain(
            {
                task: tasks.get(task, {}) | {"logits_processors": processors(settings)}
                for task, settings in requests.items()
            }
        ),
    )


def _resolved(
    lm: Any, arguments: Mapping[str, Any], config: Any, without: Collection[str]
) -> dict[str, Any]:
    """Every argument of the model's class: what it became in loading, was given, or its default."""
    defaults: dict[str, Any] = {}
    for each in reversed(type(lm).__mro__):
        constructor = vars(each).get("__init__")
        if constructor is not None and each is not object:
            parameters = inspect.signature(constructor).parameters.values()
            defaults |= {p.name: p.default for p in parameters if p.default is not p.empty}
    values = {**defaults, **arguments}
    for name in values:
        attribute = inspect.getattr_static(lm, name, None)
        if attribute is not None and not callable(attribute):
            resolved = getattr(lm, name)
            if resolved is None or isinstance(resolved, str | int | float | torch.dtype):
                values[name] = resolved
    shown = {name: _plain(value) for name, value in sorted(values.items()) if name not in without}
    return recorded(shown, {*defaults, *getattr(config, "__dict__", ())})


def _plain(value: Any) -> Any:
    """A JSON value; an object becomes its `to_dict`, or the name of its type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype | torch.device | Path):
        return str(value).removeprefix("torch.")
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return _plain(value.to_dict()) if hasattr(value, "to_dict") else f"({type(value).__name__})"
