"""What decides how a model drafts and decodes, checked before it is loaded."""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from accelerate.utils import convert_file_size_to_int

from copyspec_eval.drafters.registry import drafter_factory, parse_settings
from copyspec_eval.errors import OptionError
from copyspec_eval.types import PAPER_DELTA, PAPER_GAMMA, DraftOptions

_ARM_SETTINGS = {field.name for field in fields(DraftOptions)} - {"drafter"}


def draft_options(drafter: str | None, gamma: int | None, **others: Any) -> DraftOptions:
    """How to draft, with the default drafter and γ where None is given.

    >>> draft_options(None, None).drafter, draft_options(None, 5).label
    ('suffix', 'copyspec')
    """
    if gamma is not None and drafter not in (None, "copyspec"):
        raise OptionError(
            f"gamma={gamma} has no effect on drafter={drafter}; leave one of them out"
        )
    if gamma is None:
        return DraftOptions("suffix" if drafter is None else drafter, PAPER_GAMMA, **others)
    return DraftOptions("copyspec", gamma, **others)


def parse_arms(
    shared: DraftOptions, arms: object = None, *, exact: bool = False
) -> tuple[DraftOptions, ...]:
    """How each arm drafts; `shared` alone if `arms` is None.

    `arms` lists drafters: a list, text with `:` between them, or text in brackets with commas. Each
    can have settings after `+`; the others are those of `shared`. A plain `none` is left out,
    because every run has a baseline.

    >>> arms = parse_arms(DraftOptions(num_draft_tokens=8), "none:copyspec+gamma=5:suffix+tree")
    >>> [arm.label for arm in arms], arms[0].gamma, arms[1].num_draft_tokens
    (['copyspec', 'suffix + tree'], 5, 8)
    >>> [arm.label for arm in parse_arms(DraftOptions(), "[copyspec, suffix+store]")]
    ['copyspec', 'suffix + store']
    """
    names = arms
    if isinstance(arms, str):
        # lm-eval passes a list on the command line as text.
        in_brackets = re.fullmatch(r"\[(.*)\]", arms)
        texts = in_brackets[1].split(",") if in_brackets else arms.split(":")
        names = [text.strip() for text in texts]
    if not isinstance(names, Sequence | None) or not all(isinstance(n, str) for n in names or ()):
        raise OptionError(f"arms={arms!r} is not a list of drafters; pass e.g. none:suffix")
    options = [shared] if names is None else [_arm(shared, name) for name in names]
    for each in options:
        drafter_factory(each)
        if each.tree and exact:
            raise OptionError("tree=True is not bit-exact; pass exact=False with it")
        if each.delta != PAPER_DELTA and not any(other.draft_model for other in options):
            raise OptionError(f"delta={each.delta} has no effect without draft_model; leave it out")
    if names is None:
        return (shared,)
    text = ":".join(names)
    drafting = [each for each in options if each.drafter != "none" or each.draft_model]
    for name, each in zip(names, options, strict=True):
        if each in drafting and options.count(each) > 1:
            raise OptionError(f"arms={text}: {name} is listed twice; remove one")
    if not drafting:
        raise OptionError(f"arms={text}: only the baseline; add a drafter, e.g. suffix")
    return tuple(drafting)


def _arm(shared: DraftOptions, text: str) -> DraftOptions:
    drafter, *settings = text.split("+")
    given = parse_settings(settings, _ARM_SETTINGS, f"setting of the arm {drafter}")
    if shared.store_paths or not isinstance(given.get("store", False), bool):
        raise OptionError(
            f"{text}: an arm cannot copy from earlier runs; use it in a run without arms"
        )
    return replace(shared, drafter=drafter, **given)


def check_bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be true or false, got {value!r}")
    return value


def check_model_cache(
    reason: str, arms: Sequence[DraftOptions], *, exact: bool, batch_size: object = 1
) -> None:
    """Refuse what a model's cache cannot do, if `reason` says that ours cannot serve the model."""
    is_batch = not re.fullmatch(r"auto(:[0-9]+)?|0*1", str(batch_size))
    remedies = {"exact=False": exact, "tree=False": any(arm.tree for arm in arms)}
    remedies["a batch size of 1"] = is_batch
    needed = [remedy for remedy, is_needed in remedies.items() if is_needed]
    if reason and needed:
        raise OptionError(
            f"{reason}: it may work with its own attention and cache, one request at a time; "
            f"pass {' and '.join(needed)}"
        )


def parse_bytes(name: str, value: object) -> int:
    """The bytes of a size: a number, or a text such as "2GB"."""
    with contextlib.suppress(OverflowError, ValueError):
        if isinstance(value, int | str) and not isinstance(value, bool):
            return int(convert_file_size_to_int(value))
    raise OptionError(f"{name} must be a size, e.g. 2GB, or 0 for none, got {value!r}")
