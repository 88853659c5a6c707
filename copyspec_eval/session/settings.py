"""What decides how a model drafts and decodes, checked before it is loaded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from accelerate.utils import convert_file_size_to_int

from copyspec_eval.drafters.options import setting_value
from copyspec_eval.drafters.registry import default_drafter, drafter_factory
from copyspec_eval.errors import OptionError, unknown_option
from copyspec_eval.types import PAPER_GAMMA, DraftOptions

_ARM_SETTINGS = {field.name for field in fields(DraftOptions)} - {"drafter"}


def draft_options(drafter: str | None, gamma: int | None, **others: Any) -> DraftOptions:
    """How to draft, with the default drafter and γ where None is given.

    >>> draft_options(None, None).drafter, draft_options(None, 5).label
    ('suffix', 'copyspec')
    """
    return DraftOptions(
        drafter=default_drafter(gamma) if drafter is None else drafter,
        gamma=PAPER_GAMMA if gamma is None else gamma,
        **others,
    )


def lm_eval_drafter(drafter: str | None) -> str | None:
    """The drafter of lm-eval's `model_args`, where None is the word "none" and "" nothing."""
    return "none" if drafter is None else drafter or None


def arms_of(shared: DraftOptions, arms: object) -> tuple[DraftOptions, ...]:
    """How each arm of `arms` drafts; `shared` alone if it is None.

    `arms` are drafters with `:` between them, or a list of them, as text in brackets with commas;
    each with its settings behind `+`, else those of `shared`. A plain `none` is left out: every run
    has a baseline.

    >>> arms = arms_of(DraftOptions(delta=3), "none:copyspec+gamma=5:suffix+store+tree")
    >>> [arm.label for arm in arms], arms[0].gamma, arms[1].delta
    (['copyspec', 'suffix + store + tree'], 5, 3)
    >>> [arm.label for arm in arms_of(DraftOptions(), "[copyspec, suffix+store]")]
    ['copyspec', 'suffix + store']
    """
    if arms is None:
        drafter_factory(shared)
        return (shared,)
    names = _arm_names(arms) if isinstance(arms, str) else arms
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise OptionError(
            f"arms={arms!r} is no list of drafters; pass such as none:copyspec:suffix"
        )
    text, options = ":".join(names), [_arm(shared, name) for name in names]
    drafting = [each for each in options if each.drafter != "none" or each.draft_model]
    for name, each in zip(names, options, strict=True):
        drafter_factory(each)
        if each in drafting and options.count(each) > 1:
            raise OptionError(f"arms={text}: {name} stands there twice; leave one out")
    if not drafting:
        raise OptionError(f"arms={text}: nothing but the baseline; add such as suffix")
    return tuple(drafting)


def _arm(shared: DraftOptions, text: str) -> DraftOptions:
    drafter, *settings = text.split("+")
    given: dict[str, Any] = {}
    for setting in settings:
        name, is_given, value = setting.partition("=")
        if name not in _ARM_SETTINGS:
            raise unknown_option(f"setting of the arm {drafter}", name, _ARM_SETTINGS)
        given[name] = setting_value(value) if is_given else True
    if shared.store_paths or not isinstance(given.get("store", False), bool):
        raise OptionError(
            f"{text}: answers of earlier runs are not for arms; make a run of it alone"
        )
    return replace(shared, drafter=drafter, **given)


def _arm_names(text: str) -> list[str]:
    """lm-eval passes a list on the command line on as text."""
    if text.startswith("[") and text.endswith("]"):
        return [name.strip() for name in text[1:-1].split(",")]
    return text.split(":")


def check_bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"{name}={value!r} is neither true nor false")
    return value


def check_model_cache(
    reason: str,
    *,
    exact: bool,
    tree: bool,
    batch_size: object,
    remedies: Sequence[str] = ("exact=false", "tree=false", "--batch_size 1"),
) -> None:
    """Refuse what a model cannot do that its own cache serves, for the `reason` if there is one."""
    is_batch = not re.fullmatch(r"auto(:[0-9]+)?|0*1", str(batch_size))
    asked = zip(remedies, (exact, tree, is_batch), strict=True)
    needed = [remedy for remedy, is_needed in asked if is_needed]
    if reason and needed:
        raise OptionError(
            f"{reason}: its own attention and cache may serve it, one request at a time; "
            f"pass {' and '.join(needed)}"
        )


def bytes_of(name: str, value: object) -> int:
    """A size in bytes, given as a number of them or such as "2GB".

    Raises:
        OptionError: it is none.
    """
    try:
        if isinstance(value, int | str) and not isinstance(value, bool):
            size: int = convert_file_size_to_int(value)
            return size
    except (OverflowError, ValueError):
        pass
    raise OptionError(f"{name}={value!r} is no size; pass such as 2GB, or 0 to switch it off")
