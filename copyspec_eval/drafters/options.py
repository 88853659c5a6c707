"""How to draft, as text: in command lines, environment variables and notes."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from copyspec_eval.drafters.registry import default_drafter
from copyspec_eval.errors import unknown_option
from copyspec_eval.types import DraftOptions

_SEPARATOR = ":"


def store_option(value: object) -> Any:
    """The value of `store=`: a switch as it is, paths as a tuple; `DraftOptions` refuses the rest.

    >>> store_option("runs/a:runs/b"), store_option(["runs/a"]), store_option(True)
    (('runs/a', 'runs/b'), ('runs/a',), True)
    """
    paths = value.split(_SEPARATOR) if isinstance(value, str) else value
    if isinstance(paths, list | tuple) and paths and all(isinstance(p, str) and p for p in paths):
        return tuple(paths)
    return value


def parse_draft_options(text: str, drafter: str | None = None) -> DraftOptions:
    """`DraftOptions` of "name=value,…"; `drafter` if the text is not to name it.

    >>> parse_draft_options("drafter=suffix,store=runs/a").store_paths
    ('runs/a',)
    """
    names = {field.name for field in fields(DraftOptions)} - ({"drafter"} if drafter else set())
    values: dict[str, Any] = {}
    for pair in filter(None, text.split(",")):
        name, _, value = pair.partition("=")
        if name not in names:
            raise unknown_option("drafter argument", name, names)
        values[name] = setting_value(value)
    values["store"] = store_option(values.get("store", False))
    return DraftOptions(**{"drafter": drafter or default_drafter(values.get("gamma"))} | values)


def setting_value(text: str) -> bool | int | str:
    """What a setting's text stands for: an integer, true or false, else the text.

    >>> setting_value("5"), setting_value("True"), setting_value("runs/a")
    (5, True, 'runs/a')
    """
    number = int(text) if text.removeprefix("-").isdecimal() else text
    return {"true": True, "false": False}.get(text.lower(), number)


def draft_text(options: DraftOptions) -> str:
    """`options` in the form that `parse_draft_options` reads; what is at its default is left out.

    >>> draft_text(DraftOptions("suffix", store=("runs/a", "runs/b")))
    'drafter=suffix,store=runs/a:runs/b'
    """
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    values["store"] = store_text(options.store_paths) or options.store
    usual = DraftOptions("")
    return ",".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in values.items()
        if value != getattr(usual, name)
    )


def store_text(paths: Sequence[str]) -> str:
    """The same on one line, without trailing slashes."""
    return _SEPARATOR.join(str(Path(path)) for path in paths)
