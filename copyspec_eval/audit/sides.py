"""What `--a` and `--b` name, and how prompts are made that both sides can read."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm_eval.utils import handle_arg_string

from copyspec_eval.audit.asking import Side
from copyspec_eval.audit.local import LocalSide, RecordedSide
from copyspec_eval.audit.server import ServerSide
from copyspec_eval.errors import OptionError
from copyspec_eval.harness.answering import Message, Render
from copyspec_eval.harness.recorded import parse_arguments
from copyspec_eval.openai_api import TIMEOUT_SECONDS
from copyspec_eval.redaction import masked

_OF_SERVER = {"base_url", "model", "timeout"}


def arguments(text: str) -> dict[str, Any]:
    """`name=value` pairs between commas; a value may be JSON.

    >>> arguments('pretrained=M,speculative_config={"method": "ngram", "k": 3},seed=1')
    {'pretrained': 'M', 'speculative_config': {'method': 'ngram', 'k': 3}, 'seed': 1}
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character in "{[") - (character in "}]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    values: dict[str, Any] = {}
    for part in filter(None, parts):
        name, equals, value = part.partition("=")
        if not equals:
            raise OptionError(f"{masked(part)!r} is not NAME=VALUE")
        values[name.strip()] = _value(name, value)
    return values


def _value(name: str, value: str) -> Any:
    if not value.startswith(("{", "[")):
        return handle_arg_string(value)
    try:
        return json.loads(value)
    except ValueError as error:
        raise OptionError(f"{name}: its value is not JSON ({error})") from error


def parse(option: str, text: str, batch_size: int) -> Side:
    """The side that `text` names: a server, an lm-eval model, or the folder of an earlier run."""
    folder = Path(text)
    if folder.is_dir():
        return RecordedSide(folder)
    model, _, rest = text.partition(",") if "=" not in text.partition(",")[0] else ("", "", text)
    given = parse_arguments(arguments(rest))
    if model:
        return LocalSide(model, dict(given), batch_size)
    missing, unknown = {"base_url", "model"} - given.keys(), given.keys() - _OF_SERVER
    if missing or unknown:
        wrong = f"without {missing.pop()}" if missing else f"with {unknown.pop()}, which is unknown"
        raise OptionError(
            f"{option} is a server {wrong}; give base_url=http://HOST:PORT/v1,model=NAME, an "
            "lm-eval model such as vllm,pretrained=NAME, or the folder of a run"
        )
    timeout = float(given.get("timeout", TIMEOUT_SECONDS))
    return ServerSide(str(given["base_url"]), str(given["model"]), timeout)


def renderer(sides: Sequence[Side], tokenizer: str | None) -> Render | None:
    """What makes prompts: a tokenizer or a local side's; else the servers, from the messages.

    None for text as it is, where the tokenizer has no chat template.
    """
    local = next((side for side in sides if isinstance(side, LocalSide)), None)
    if tokenizer is not None:
        return _of_tokenizer(tokenizer)
    if local is not None:
        return local.render if local.has_template else None
    return lambda messages, begins: json.dumps([json.dumps(list(messages))])


def _of_tokenizer(name: str) -> Render | None:
    from transformers import AutoTokenizer

    try:
        loaded: Any = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise OptionError(f"--tokenizer {name}: cannot be loaded ({error})") from error
    if not loaded.chat_template:
        return None
    ids = loaded("").input_ids
    bos = loaded.bos_token if ids and ids[0] == loaded.bos_token_id else None

    def render(messages: Sequence[Message], begins: bool) -> str:
        how: Any = {"add_generation_prompt": begins, "continue_final_message": not begins}
        text = str(loaded.apply_chat_template(list(messages), tokenize=False, **how))
        return text.removeprefix(bos or "")  # a server adds it again

    return render
