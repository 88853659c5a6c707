"""A chat model behind an OpenAI-compatible server."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tqdm.contrib.concurrent import thread_map

from copyspec_eval import journal, openai_api
from copyspec_eval.errors import OptionError
from copyspec_eval.openai_api import NoReplyError
from copyspec_eval.redaction import without_secrets

_Key = TypeVar("_Key")
_Question = TypeVar("_Question")

MAX_TOKENS = 2048  # as FastChat


class ChatModel:
    """A chat model of a server, `base_url`; by default `$OPENAI_BASE_URL`, else OpenAI's."""

    def __init__(self, name: str, base_url: str | None = None) -> None:
        if not openai_api.api_key() and not base_url:
            raise OptionError("OPENAI_API_KEY is not set; set it, or give --base-url of a server")
        self.name = name
        default = os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        self._url = openai_api.checked_url(base_url or default) + "/chat/completions"

    def ask(self, system: str, user: str) -> str:
        """The answer at temperature 0; "" if the completion has none."""
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        body: dict[str, Any] = {"model": self.name, "messages": messages}
        body |= {"temperature": 0, "max_tokens": MAX_TOKENS}
        completion = openai_api.request(self._url, body, openai_api.TIMEOUT_SECONDS)
        try:
            content = completion["choices"][0]["message"]["content"]
        except (LookupError, TypeError):  # not a chat completion
            return ""
        return without_secrets(content) if isinstance(content, str) else ""


def ask_missing(
    path: Path,
    questions: Mapping[_Key, _Question],
    rows: dict[_Key, dict[str, Any]],
    ask: Callable[[_Question], dict[str, Any]],
    concurrency: int,
    label: str,
) -> dict[_Key, str]:
    """Ask those of `questions` that have no row yet, `concurrency` at a time, with a progress bar.

    Each row is put into `rows` and appended at once to `path`, which the caller holds. Returns why
    each question that `ask` raised `NoReplyError` for has none.
    """
    if concurrency < 1:
        raise OptionError(f"--concurrency must be at least 1, got {concurrency}")
    reasons: dict[_Key, str] = {}

    def ask_one(key: _Key) -> None:
        try:
            row = ask(questions[key])
        except NoReplyError as error:
            reasons[key] = str(error)
        else:
            journal.append(path, json.dumps(row).encode())
            rows[key] = row

    missing = [key for key in questions if key not in rows]
    thread_map(ask_one, missing, max_workers=concurrency, desc=label, unit="answer")
    return reasons
