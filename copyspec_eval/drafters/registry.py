"""The drafters by name, and drafting options as text.

A new drafter is a file beside this one and an entry in `DRAFTERS`.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from copyspec_eval.drafters.automaton import AnswerStore
from copyspec_eval.drafters.base import Drafter, NoDrafter
from copyspec_eval.drafters.copyspec import CopySpecDrafter
from copyspec_eval.drafters.outcomes import Outcomes
from copyspec_eval.drafters.suffix import SuffixDrafter
from copyspec_eval.errors import OptionError, unknown_option
from copyspec_eval.types import PAPER_DRAFT_TOKENS, DraftOptions

DrafterFactory = Callable[[], Drafter]  # makes the drafter of one request
# The default longest draft, in tokens, of a drafter that goes by acceptance thresholds.
LONGEST_DRAFT = 96


class DrafterKind(NamedTuple):
    """A drafter that can be chosen by name."""

    make: Callable[[DraftOptions, Iterable[Sequence[int]]], DrafterFactory]  # as `drafter_factory`
    # Default for the longest draft; None for a drafter that goes by acceptance thresholds.
    num_draft_tokens: int | None
    switches: frozenset[str] = frozenset()  # which of `store` and `tree` it has


def _copyspec(options: DraftOptions, earlier: Iterable[Sequence[int]]) -> DrafterFactory:
    most = options.num_draft_tokens
    return lambda: CopySpecDrafter(options.gamma, PAPER_DRAFT_TOKENS if most is None else most)


def _suffix(options: DraftOptions, earlier: Iterable[Sequence[int]]) -> DrafterFactory:
    """The drafters of a run share what they count and store."""
    store = AnswerStore(earlier=earlier) if options.store else None
    outcomes = Outcomes()
    return lambda: SuffixDrafter(store, options.tree, outcomes)


DRAFTERS: dict[str, DrafterKind] = {
    "none": DrafterKind(lambda options, earlier: NoDrafter, PAPER_DRAFT_TOKENS),
    "copyspec": DrafterKind(_copyspec, PAPER_DRAFT_TOKENS),
    "suffix": DrafterKind(_suffix, None, frozenset({"store", "tree"})),
}


def drafter_kind(name: str) -> DrafterKind:
    if name not in DRAFTERS:
        raise unknown_option("drafter", name, DRAFTERS)
    return DRAFTERS[name]


def drafter_factory(options: DraftOptions, earlier: Iterable[Sequence[int]] = ()) -> DrafterFactory:
    """A factory of the drafter that `options` names, one drafter per request.

    A store begins with `earlier`, answers of earlier runs. `OptionError` if the drafter lacks a
    switch that is on.
    """
    kind = drafter_kind(options.drafter)
    for name in ("store", "tree"):
        if getattr(options, name) and name not in kind.switches:
            drafters = sorted(other for other in DRAFTERS if name in DRAFTERS[other].switches)
            paths = options.store_paths if name == "store" else ()
            raise OptionError(
                f"{name}={':'.join(paths) or 'true'} is not for drafter={options.drafter}; "
                f"pass drafter={' or '.join(drafters)}"
            )
    return kind.make(options, earlier)


def longest_draft(options: DraftOptions) -> int:
    """The tokens of the longest draft: the user's number or the drafter's, or a draft model's."""
    if (copied := options.num_draft_tokens) is None:
        copied = drafter_kind(options.drafter).num_draft_tokens or LONGEST_DRAFT
    return max(copied, options.delta) if options.draft_model else copied


def store_option(value: object) -> Any:
    """The value of `store=`: a switch as it is, paths as a tuple; `DraftOptions` refuses the rest.

    >>> store_option("runs/a:runs/b"), store_option(["runs/a"]), store_option(True)
    (('runs/a', 'runs/b'), ('runs/a',), True)
    """
    paths = value.split(":") if isinstance(value, str) else value
    if isinstance(paths, list | tuple) and paths and all(isinstance(p, str) and p for p in paths):
        return tuple(paths)
    return value


def parse_settings(
    settings: Iterable[str], names: Collection[str], kind: str = "drafter argument"
) -> dict[str, Any]:
    """Values of settings "name=value", each an integer, true, false or text; a bare name is true.

    >>> parse_settings(["delta=5", "tree", "store=runs/a"], {"delta", "tree", "store"})
    {'delta': 5, 'tree': True, 'store': 'runs/a'}
    """
    values: dict[str, Any] = {}
    for setting in settings:
        name, is_given, text = setting.partition("=")
        if name not in names:
            raise unknown_option(kind, name, names)
        value = int(text) if text.removeprefix("-").isdecimal() else text
        words = {"true": True, "false": False}
        values[name] = words.get(text.lower(), value) if is_given else True
    return values


def parse_draft_options(text: str, drafter: str | None = None) -> DraftOptions:
    """Parse "name=value,…" to `DraftOptions`; give `drafter` if the text must not name one.

    >>> parse_draft_options("drafter=suffix,store=runs/a").store_paths
    ('runs/a',)
    """
    names = {field.name for field in fields(DraftOptions)} - ({"drafter"} if drafter else set())
    values = parse_settings(filter(None, text.split(",")), names)
    values["store"] = store_option(values.get("store", False))
    usual = "copyspec" if "gamma" in values else "suffix"
    return DraftOptions(**{"drafter": drafter or usual} | values)


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
    """Paths as `store=` takes them, on one line, without trailing slashes."""
    return ":".join(str(Path(path)) for path in paths)
