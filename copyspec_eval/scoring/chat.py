"""A chat model behind an OpenAI-compatible server."""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tqdm import tqdm

from copyspec_eval import journal
from copyspec_eval.errors import OptionError, needing
from copyspec_eval.redaction import address, hide_url, masked, without_secrets

_Key = TypeVar("_Key")
_Question = TypeVar("_Question")

KEY_VARIABLE = "OPENAI_API_KEY"

# The client doubles its wait before each retry, or waits as long as the server asks.
MAX_RETRIES = 5
# Of an answer, retries included, however slowly a server sends it; --help of `judge` names it.
TIMEOUT_SECONDS = 300.0
MAX_BYTES = 2**20
MAX_TOKENS = 2048  # as FastChat


class UnansweredError(Exception):
    """There is no usable answer; the message, one line, is the reason."""


class ChatModel:
    """A chat model of a server, `base_url`; by default `$OPENAI_BASE_URL`, else OpenAI's."""

    def __init__(self, name: str, base_url: str | None = None) -> None:
        with needing("the package openai", "asking a chat model", "judge"):
            import openai
        self.name = name
        self._key = os.environ.get(KEY_VARIABLE, "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise OptionError(f"{KEY_VARIABLE} has characters that no key has; set it again")
        if not self._key and not base_url:
            raise OptionError(f"{KEY_VARIABLE} is not set; set it, or give --base-url of a server")
        if base_url:
            hide_url(base_url)
            _check_url(base_url)
        self._openai = openai
        self._base_url = base_url

    def ask(self, system: str, user: str) -> str:
        """The answer at temperature 0; "" if the completion has none."""
        try:
            return without_secrets(_content(asyncio.run(self._completion(system, user))))
        except UnansweredError:
            raise
        except asyncio.TimeoutError:
            reason = f"no answer in {TIMEOUT_SECONDS:g} s, retries included"
        except self._openai.APIStatusError as error:
            reason = one_line(f"HTTP {error.status_code}: {error.response.text}")
        except Exception as error:  # of the client, and of its transport, whichever it uses
            reason = one_line(str(error)) or type(error).__name__
        raise UnansweredError(reason)

    async def _completion(self, system: str, user: str) -> bytes:
        client = self._openai.AsyncOpenAI(
            api_key=self._key or "EMPTY",  # the client requires one
            base_url=self._base_url,
            timeout=TIMEOUT_SECONDS,
            max_retries=MAX_RETRIES,
        )
        messages: Any = [{"role": "system", "content": system}, {"role": "user", "content": user}]

        async def body() -> bytes:
            async with client.chat.completions.with_streaming_response.create(
                model=self.name, messages=messages, temperature=0, max_tokens=MAX_TOKENS
            ) as response:
                content = bytearray()
                async for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > MAX_BYTES:
                        raise UnansweredError(f"an answer of over {MAX_BYTES} bytes")
                return bytes(content)

        async with client:
            return await asyncio.wait_for(body(), TIMEOUT_SECONDS)


def ask_missing(
    path: Path,
    questions: Mapping[_Key, _Question],
    rows: dict[_Key, dict[str, Any]],
    ask: Callable[[_Question], dict[str, Any]],
    concurrency: int,
    label: str,
    ensure_ascii: bool = True,
) -> dict[_Key, str]:
    """Ask those of `questions` that have no row yet, `concurrency` at a time, with a progress bar.

    Each row is put into `rows` and appended at once to `path`, which the caller holds. Returns why
    each question that `ask` raised `UnansweredError` for has none.
    """
    if concurrency < 1:
        raise OptionError(f"--concurrency must be at least 1, got {concurrency}")
    reasons: dict[_Key, str] = {}

    def ask_one(key: _Key) -> None:
        try:
            row = ask(questions[key])
        except UnansweredError as error:
            reasons[key] = str(error)
        else:
            journal.append(path, json.dumps(row, ensure_ascii=ensure_ascii).encode())
            rows[key] = row

    pool = ThreadPoolExecutor(concurrency)
    try:
        futures = [pool.submit(ask_one, key) for key in questions if key not in rows]
        for future in tqdm(as_completed(futures), label, len(futures), unit="answer"):
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)
    return reasons


def one_line(text: str) -> str:
    """`text` as one line of at most 200 characters, without secrets, which servers may echo."""
    return " ".join(masked(text).split())[:200]


def _content(completion: bytes) -> str:
    """The text of a chat completion; "" if it has none, or is not a chat completion."""
    try:
        content = json.loads(completion)["choices"][0]["message"]["content"]
    except (LookupError, TypeError, ValueError, RecursionError):
        return ""
    return content if isinstance(content, str) else ""


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise OptionError(f"base URL {address(url)!r}; give one such as http://localhost:8000/v1")
