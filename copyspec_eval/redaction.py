"""Secrets blanked in what is written down: by the exact names of settings, and by their shapes.

Settings that only sound like one (`prompt_lookup_num_tokens`, `add_bos_token`) stay.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

BLANK = "***"

NAMES = frozenset(
    {
        *("token", "hf_token", "hub_token", "auth_token", "use_auth_token", "access_token"),
        *("refresh_token", "id_token", "bearer", "authorization", "proxy_authorization"),
        *("key", "api_key", "apikey", "openai_api_key", "anthropic_api_key", "access_key"),
        *("secret", "secret_key", "client_secret", "password", "passwd", "credentials"),
        *("header", "headers", "cookie", "cookies", "proxies"),
    }
)
"""Settings whose values are secrets, in lower case; `api-key` counts as `api_key`."""

_WORDS = frozenset({"bearer", "cookie", "cookies", "header", "headers", "key", "proxies"})
"""Of these, those that a text may have before a colon."""

_IN_TEXT = "|".join(sorted(name.replace("_", "[-_]") for name in NAMES - _WORDS))
_VALUE = r"\"[^\"]*\"|'[^']*'|(?:bearer\s+|basic\s+)?[^,\s&;}\]\"']+"
_NAMED = re.compile(rf"(?<!\w)((?:{_IN_TEXT})[\"']?\s*[=:]\s*)({_VALUE})", re.IGNORECASE)
_USER_OF_URL = re.compile(r"(?<=://)[^/\s?#\"']*@")
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{10,}|hf_[a-z]{30,}"
    r"|sk-[\w-]{10,}|gsk_\w{16,}|nvapi-[\w-]{16,}|r8_\w{16,}"
    r"|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{10,}|xox[abprs]-[\w-]{8,}"
    r"|AKIA[0-9A-Z]{12,}|AIza[\w-]{20,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r")"
)
_BEARER = re.compile(r"(\bbearer\s+)[^\s,\"']{16,}", re.IGNORECASE)

_PATH = re.compile(r"(?<![\w/.~-])~?(?:/[^\s/=,:;\"'()\\]+)+/?")

_VARIABLE = re.compile(r"(?:^|_)(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD)$")
_SHORTEST_VALUE = 8
"""Of a variable that is looked for: a shorter one would be found in ordinary words."""


def redacted(value: Any, name: str = "") -> Any:
    """A JSON value without secrets.

    Args:
        value: the value; dictionaries and lists are searched.
        name: of the setting that has it; one that ends in "args" is read as on a command line.

    >>> redacted({"token": "hf_abc", "max_new_tokens": 5, "url": "http://me:pw@host"})
    {'token': '***', 'max_new_tokens': 5, 'url': 'http://***@host'}
    """
    if _is_secret(name) and value and not isinstance(value, bool):
        return BLANK
    if isinstance(value, Mapping):
        return {key: redacted(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    if not isinstance(value, str):
        return value
    return _argument(value) if name.endswith("args") else redacted_text(value)


def redacted_text(text: str) -> str:
    """A text without what has the shape of a secret, or is the value of a secret variable.

    >>> redacted_text("HTTP 401: bad key sk-0123456789ab for http://me:pw@host/v1")
    'HTTP 401: bad key *** for http://***@host/v1'
    """
    for variable, value in os.environ.items():
        if len(value) >= _SHORTEST_VALUE and _VARIABLE.search(variable.upper()):
            text = text.replace(value, BLANK)
    text = _USER_OF_URL.sub(f"{BLANK}@", text)
    text = _BEARER.sub(rf"\1{BLANK}", text)
    text = _NAMED.sub(lambda match: match[1] + _quoted(match[2]), text)
    return _SHAPES.sub(BLANK, text)


def shareable(text: str) -> str:
    """A text without folders of this machine: an absolute path is shown by its last name.

    >>> shareable("lm_eval --model_args pretrained=/home/me/models/M --output_path ~/runs/a/")
    'lm_eval --model_args pretrained=M --output_path a'
    >>> shareable("store=/home/me/runs/a:/home/me/runs/b")
    'store=a:b'
    >>> shareable("http://host/v1 and org/M")
    'http://host/v1 and org/M'
    """
    return _PATH.sub(lambda path: path[0].rstrip("/").rpartition("/")[2], text)


def redacted_command(arguments: Sequence[str]) -> str:
    """A command line without secrets.

    >>> redacted_command(["lm_eval", "--model_args", '{"token": "x"}', "--api-key", "k", "key=a,b"])
    'lm_eval --model_args {"token": "***"} --api-key *** key=***'
    """
    shown: list[str] = []
    is_value = False
    for argument in arguments:
        if is_value and not argument.startswith("--"):
            shown.append(BLANK)
        else:
            shown.append(_argument(argument))
        is_value = argument.startswith("--") and _is_secret(argument)
    return " ".join(shown)


def _argument(argument: str) -> str:
    """One word of a command line: a text, JSON, or `name=value` pairs with commas between them."""
    flag, equals, value = argument.partition("=")
    if equals and flag.startswith("--"):
        return f"{flag}={BLANK if _is_secret(flag) else _argument(value)}"
    if argument[:1] in ("{", "["):
        try:
            return json.dumps(redacted(json.loads(argument)), ensure_ascii=False)
        except (ValueError, RecursionError):
            return redacted_text(argument)
    pairs: list[str] = []
    for part in argument.split(","):
        name, equals, _ = part.partition("=")
        if equals and _is_secret(name):
            pairs.append(f"{name}={BLANK}")
        elif equals or not pairs or not pairs[-1].endswith(f"={BLANK}"):
            pairs.append(part)
        # Otherwise it goes on with a secret that has a comma.
    return redacted_text(",".join(pairs))


def _is_secret(name: str) -> bool:
    return name.lstrip("-").strip().lower().replace("-", "_") in NAMES


def _quoted(value: str) -> str:
    quote = value[0] if value[0] in "\"'" else ""
    return f"{quote}{BLANK}{quote}"
