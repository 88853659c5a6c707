"""Secrets in texts that others wrote: of settings that are not declared, and of the environment."""

import base64
import functools
import html
import json
import logging
import os
import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus, unquote_plus, urlsplit

NOT_RECORDED = "not-recorded"

_SECRET_NAME = re.compile(
    r"(?i)(?:token|(?:key|secret|password|credential|cookie|header)s?|passwd|pass|proxies|"
    r"auth|authorization)$"
)
_URL = re.compile(
    r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>`]*|(?<![\w/])/[^\s\"'<>`?]*\?[^\s\"'<>`]*=[^\s\"'<>`]*",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_PATH = re.compile(r"(?<![\w/.~-])~?(?:/[^\s/=,:;\"'()\\]+)+/?")
_WORD = re.compile(r"[^\s\"'{}\[\]:,]{8,}")

# Shorter values are masked as whole words; the shortest only after their names.
_ANYWHERE, _AS_A_WORD = 8, 4
_NO_SECRETS = frozenset({"true", "false", "none", "null", "auto", "empty"})

_hidden: set[str] = set()
_named: set[tuple[str, str]] = set()


def looks_secret(name: str) -> bool:
    """Whether an argument or a variable of that name may hold a secret."""
    return bool(_SECRET_NAME.search(name))


def hide(name: str, value: Any) -> None:
    """Mask a setting's value in every text from now on; of a container, all that is in it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            hide(str(key), inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            hide(name, inner)
    elif value is not None and not isinstance(value, bool):
        text = str(value)
        _named.add((name, text))
        _hidden.update(_spellings(text, *_WORD.findall(text), *_secrets_of_url(text)))


def hide_url(url: str) -> None:
    """Mask user, password, query and fragment of a URL in every text from now on."""
    _hidden.update(_spellings(*_secrets_of_url(url)))


def address(url: str) -> str:
    """Scheme, host, port and path of a URL: the parts that may be shown.

    >>> address("https://me:pw@host:8000/v1?key=abc#x"), address("host/v1?key=abc")
    ('https://host:8000/v1', 'host/v1')
    """
    scheme = _SCHEME.match(url)
    try:
        parts = urlsplit(url if scheme or url.startswith("/") else f"//{url}")
        host = parts.netloc.rpartition("@")[2]
        _ = parts.port  # raises where a part of a password was taken for it
    except ValueError:
        return NOT_RECORDED
    if host == parts.netloc and "@" in url:  # perhaps of a password that has a "/", "?" or "#"
        return NOT_RECORDED
    return f"{scheme[0] if scheme else ''}{host}{parts.path}"


def masked(text: str) -> str:
    """A message without secrets: known values are masked, and URLs shown by `address`.

    >>> masked("HTTP 401 for http://me:pw@host/v1?key=abc, see log")
    'HTTP 401 for http://host/v1 see log'
    """
    return _URL.sub(lambda url: address(url[0]), without_secrets(text))


def without_secrets(text: str) -> str:
    """A text, its URLs untouched, without the values that are hidden or of secret variables."""
    secrets = _hidden | _of_environment(tuple(os.environ.items()))
    for secret in sorted((each for each in secrets if each in text), key=len, reverse=True):
        if len(secret) >= _ANYWHERE:
            text = text.replace(secret, NOT_RECORDED)
        elif len(secret) >= _AS_A_WORD and secret.lower() not in _NO_SECRETS:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", NOT_RECORDED, text)
    for name, value in _named:
        if name in text and len(value) < _AS_A_WORD:
            pair = rf"({re.escape(name)}[\"']?\s*[=:]\s*[\"']?){re.escape(value)}(?!\w)"
            text = re.sub(pair, rf"\1{NOT_RECORDED}", text)
    return text


def mask_logs() -> None:
    """Have every log record of this process masked; calling it again changes nothing."""
    make = logging.getLogRecordFactory()
    if getattr(make, "masks_secrets", False):
        return

    def make_masked(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # the handler reports it
            return record
        if (clean := masked(text)) != text:
            record.msg, record.args = clean, ()
        if record.exc_info and record.exc_info[0]:
            record.exc_text = masked("".join(traceback.format_exception(*record.exc_info))).rstrip()
        return record

    make_masked.masks_secrets = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make_masked)


def shareable(text: str) -> str:
    """A text without secrets and folders of this machine: a path is shown by its last name.

    >>> shareable("lm_eval --model_args pretrained=/home/me/models/M --output_path ~/runs/a/")
    'lm_eval --model_args pretrained=M --output_path a'
    >>> shareable("store=/home/me/runs/a:/home/me/runs/b http://host/v1 org/M")
    'store=a:b http://host/v1 org/M'
    """
    return _PATH.sub(lambda path: path[0].rstrip("/").rpartition("/")[2], masked(text))


@functools.lru_cache(maxsize=1)
def _of_environment(variables: tuple[tuple[str, str], ...]) -> set[str]:
    secrets: list[str] = []
    for name, value in variables:
        secrets += [value.strip()] if looks_secret(name) else _secrets_of_url(value)
    return _spellings(*secrets)


def _secrets_of_url(url: str) -> Sequence[str]:
    if not _SCHEME.match(url):
        return ()
    rest = url.partition("://")[2]
    rest, _, fragment = rest.partition("#") if "@" not in rest.partition("#")[2] else (rest, "", "")
    user, query = rest.rpartition("@")[0], rest.partition("?")[2]
    credentials = base64.b64encode(unquote_plus(user).encode()).decode()
    values = [pair.partition("=")[2] or pair for pair in re.split("[&;]", query)]
    return [user, user.partition(":")[2], credentials, *values, fragment]


def _spellings(*secrets: str) -> set[str]:
    """The spellings of secrets in a text, a URL, JSON, Python and HTML."""
    spelled: set[str] = set()
    for text in {*secrets, *map(unquote_plus, secrets)} - {""}:
        spelled |= {text, quote(text, safe=""), quote(text), quote_plus(text), html.escape(text)}
        quoted = json.dumps(text), json.dumps(text, ensure_ascii=False), repr(text)
        spelled |= {each[1:-1] for each in quoted}
    return spelled
