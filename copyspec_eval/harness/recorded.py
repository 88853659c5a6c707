"""What is recorded of a run's settings: the values of declared ones, the names of others."""

import contextlib
import functools
import inspect
import json
import os
import shlex
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from lm_eval.utils import simple_parse_args_string

from copyspec_eval import redaction
from copyspec_eval.errors import OptionError
from copyspec_eval.paths import lm_eval_models
from copyspec_eval.redaction import NOT_RECORDED, looks_secret, masked

# More `--model_args`, a JSON object, for secrets: others can read a command line.
VARIABLE = "COPYSPEC_MODEL_ARGS"
# Settings of requests, chat templates, tasks, vLLM's drafts and loggers that no signature declares.
_OTHERS = (
    *("until", "stop", "max_tokens", "max_completion_tokens", "n", "presence_penalty"),
    *("frequency_penalty", "reasoning_effort", "max_seq_lengths", "base", "method"),
    *("num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min", "project", "name"),
    "template",
)


def is_ours(model: Any) -> bool:
    if isinstance(model, str):
        return model in lm_eval_models().names
    return type(model).__module__.startswith("copyspec_eval.")


def recorded(settings: Mapping[str, Any], also: Collection[str] = ()) -> dict[str, Any]:
    """JSON values as they are recorded: of declared names and `also`; others get hidden."""
    if not settings:
        return {}
    names = _declared() | {name for name in also if not looks_secret(name)}
    return {str(name): _value(str(name), value, names) for name, value in settings.items()}


def _value(name: str, value: Any, names: Collection[str]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if name not in names:
        redaction.hide(name, value)
        return NOT_RECORDED
    if isinstance(value, Mapping):
        return {str(key): _value(str(key), inner, names) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_value(name, inner, names) for inner in value]
    if not isinstance(value, str):
        return value
    redaction.hide_url(value)
    return redaction.address(value) if name.endswith("url") else masked(value)


@functools.cache
def _declared() -> frozenset[str]:
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.models.api_models import TemplateAPI
    from lm_eval.models.huggingface import HFLM
    from transformers import GenerationConfig

    from copyspec_eval.harness.options import LOADING_OPTIONS, OUR_OPTIONS

    names = {*OUR_OPTIONS, *LOADING_OPTIONS, *_OTHERS}
    names |= vars(GenerationConfig()).keys()  # type: ignore[no-untyped-call]
    names |= parameters(HFLM) | parameters(TemplateAPI) | parameters(EvaluationTracker)
    with contextlib.suppress(ImportError):
        from lm_eval.models.vllm_causallms import VLLM
        from vllm import EngineArgs

        names |= parameters(VLLM) | parameters(EngineArgs)
    # It is a marker in the answer's text.
    return frozenset({name for name in names if not looks_secret(name)} | {"think_end_token"})


def parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)


class Arguments(dict[str, Any]):
    """Arguments that print as they are recorded; lm-eval prints those of every model."""

    def __repr__(self) -> str:
        return repr(recorded(self))

    def __or__(self, other: Mapping[str, Any]) -> "Arguments":  # type: ignore[override]
        return Arguments({**self, **other})


def parse_arguments(given: Mapping[str, Any] | str | None) -> Arguments:
    parsed = Arguments(given if isinstance(given, Mapping) else simple_parse_args_string(given))
    recorded(parsed)  # hides what is secret
    return parsed


def environment_arguments() -> dict[str, Any]:
    try:
        given = json.loads(os.environ.get(VARIABLE) or "{}")
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise OptionError(f'{VARIABLE} is not a JSON object; set it to e.g. {{"token": "…"}}')
    return given


def with_environment(given: Mapping[str, Any]) -> Arguments:
    whole = parse_arguments({**given, **environment_arguments()})
    for name, value in whole.items():
        if value == NOT_RECORDED:
            raise OptionError(
                f"{name}={NOT_RECORDED} stands for a value that was left out of a command; set "
                f"{VARIABLE}='{{\"{name}\": …}}'"
            )
    return whole


_command = ""


def command() -> str:
    """The `lm_eval` command of this process as it is recorded; "" if there is none."""
    return _command


def record_command(config: Any) -> None:
    """Have lm-eval's command line print our models' arguments as they are recorded; remember it."""
    global _command
    if not is_ours(config.model):
        return
    redaction.mask_logs()
    for name in {field.name for field in fields(config)} - {"samples", "cache_requests"}:
        if isinstance(value := getattr(config, name), dict):
            setattr(config, name, parse_arguments(value))
    words, defaults = ["lm_eval"], type(config)()
    for field in fields(config):
        if (value := getattr(config, field.name)) is None or value == getattr(defaults, field.name):
            continue
        words.append(f"--{field.name}")
        if value is not True:
            words.append(masked(_in_words(value)))
    _command = shlex.join(words)


def _in_words(value: Any) -> str:
    if isinstance(value, Arguments):
        value = recorded(value)
        if any(isinstance(inner, dict | list) for inner in value.values()):
            return json.dumps(value, ensure_ascii=False)
        return ",".join(f"{name}={inner}" for name, inner in value.items())
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
