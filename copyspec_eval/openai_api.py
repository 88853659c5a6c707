"""Requests to servers with OpenAI's API."""

import os
import queue
import threading
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import Retry
from urllib3.exceptions import HTTPError

from copyspec_eval import journal
from copyspec_eval.errors import OptionError
from copyspec_eval.redaction import address, hide_url, masked

MAX_BYTES = 2**25
MAX_RETRIES = 5
# Of a reply, retries included, however slowly a server sends it; --help of `judge` names it.
TIMEOUT_SECONDS = 300.0
_BUSY = {408, 409, 425, 429, 502, 503, 504}


class NoReplyError(Exception):
    """There is no usable reply; the message, one line, is the reason."""


class RefusedError(NoReplyError):
    """The server understood the request and refuses it."""


def checked_url(url: str) -> str:
    """A server's base URL, without a slash at its end; its secrets are masked from now on."""
    hide_url(url)
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise OptionError(f"invalid base URL {address(url)!r}; pass e.g. http://127.0.0.1:8000/v1")
    return url.removesuffix("/")


def api_key() -> str:
    """The key, from the environment; "" without one."""
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if not (key.isascii() and key.isprintable()):
        raise OptionError("OPENAI_API_KEY has invalid characters; set it again")
    return key


def request(url: str, body: dict[str, Any] | None, seconds: float) -> Any:
    """The JSON reply to a POST of `body`, or to a GET without one; a busy server is asked again.

    Raises `NoReplyError` after `seconds`, and for a reply of over `MAX_BYTES`.
    """
    replies = queue.SimpleQueue[bytes | Exception]()

    def run() -> None:
        try:
            replies.put(_reply(url, body, seconds))
        except Exception as error:
            replies.put(error)

    # The client's timeout is of each packet, and a server may go on with small ones.
    threading.Thread(target=run, daemon=True).start()
    try:
        reply = replies.get(timeout=seconds)
    except queue.Empty:
        reply = NoReplyError(f"no answer in {seconds:g} s, retries included")
    if isinstance(reply, Exception):
        raise reply
    try:
        return journal.parsed(reply)
    except ValueError as error:
        raise NoReplyError(f"its reply is not JSON ({one_line(str(error))})") from error


def _reply(url: str, body: dict[str, Any] | None, seconds: float) -> bytes:
    key, content = api_key(), bytearray()
    retries = Retry(MAX_RETRIES, connect=False, read=False, other=False, allowed_methods=None)
    retries.status_forcelist, retries.backoff_factor = {*_BUSY, 500}, 0.5
    retries.raise_on_status = False

    def authorize(prepared: requests.PreparedRequest) -> requests.PreparedRequest:
        prepared.headers["Authorization"] = f"Bearer {key}"
        return prepared

    try:
        with requests.Session() as session:
            session.mount(url, HTTPAdapter(max_retries=retries))
            session.auth = authorize if key and not urlsplit(url).username else None
            arguments: dict[str, Any] = {"json": body, "timeout": seconds + 1, "stream": True}
            with session.request("POST" if body else "GET", url, **arguments) as response:
                for chunk in response.iter_content(2**16):
                    content += chunk
                    if len(content) > MAX_BYTES:
                        raise NoReplyError(f"an answer of over {MAX_BYTES} bytes")
    except (OSError, ValueError, HTTPError) as error:
        raise NoReplyError(one_line(str(error)) or type(error).__name__) from error
    if response.status_code // 100 == 2:
        return bytes(content)
    words = one_line(f"HTTP {response.status_code}: {content.decode(errors='replace')}")
    raise (NoReplyError if response.status_code in _BUSY else RefusedError)(words)


def one_line(text: str) -> str:
    """`text` as one line of at most 200 characters, without secrets, which servers may echo."""
    return " ".join(masked(text).split())[:200]
