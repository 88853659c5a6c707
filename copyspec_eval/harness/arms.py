"""The arms of a run: ways of drafting that answer every request in turn.

A run has one, unless `arms` names more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from copyspec_eval.decoding.earlier_runs import setting_value
from copyspec_eval.decoding.engines import Drafting
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.errors import OptionError, unknown_option
from copyspec_eval.harness.recorder import RunRecorder
from copyspec_eval.types import DraftOptions

_SETTINGS = {field.name for field in fields(DraftOptions)} - {"drafter"}


@dataclass(frozen=True, slots=True)
class Arm:
    """A way of drafting, and the records of its answers.

    Attributes:
        drafting: how it drafts.
        recorder: of its rows; every arm is a run of its own there.
    """

    drafting: Drafting
    recorder: RunRecorder

    @property
    def options(self) -> DraftOptions:
        """The settings of its drafts."""
        return self.drafting.options


def options_of_arms(shared: DraftOptions, arms: object) -> tuple[DraftOptions, ...]:
    """How each arm of `arms` drafts; `shared` alone if it is None.

    Args:
        shared: the settings that hold for every arm which does not name its own.
        arms: drafters with `:` between them, or a list of them, as text in brackets with commas;
            each with its settings behind `+`. A plain `none` is left out, for the baseline is there
            in any case.

    Raises:
        OptionError: an arm is unknown, stands there twice, or has a setting that does not exist or
            is not for it; or there is none but the baseline.

    >>> arms = options_of_arms(DraftOptions(delta=3), "none:copyspec+gamma=5:suffix+store+tree")
    >>> [arm.label for arm in arms], arms[0].gamma, arms[1].delta
    (['copyspec', 'suffix + store + tree'], 5, 3)
    >>> [arm.label for arm in options_of_arms(DraftOptions(), "[copyspec, suffix+store]")]
    ['copyspec', 'suffix + store']
    """
    if arms is None:
        drafter_factory(shared)
        return (shared,)
    names = _names(arms) if isinstance(arms, str) else arms
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise OptionError(
            f"arms={arms!r} is no list of drafters; pass such as none:copyspec:suffix"
        )
    options = [_options(shared, name) for name in names]
    drafting = [each for each in options if each.drafter != "none" or each.draft_model]
    for name, each in zip(names, options, strict=True):
        drafter_factory(each)
        if each in drafting and options.count(each) > 1:
            raise OptionError(f"arms={_text(names)}: {name} stands there twice; leave one out")
    if not drafting:
        raise OptionError(f"arms={_text(names)}: nothing but the baseline; add such as suffix")
    return tuple(drafting)


def _options(shared: DraftOptions, arm: str) -> DraftOptions:
    drafter, *settings = arm.split("+")
    given: dict[str, Any] = {}
    for setting in settings:
        name, is_given, value = setting.partition("=")
        if name not in _SETTINGS:
            raise unknown_option(f"setting of the arm {drafter}", name, _SETTINGS)
        given[name] = setting_value(value) if is_given else True
    if shared.store_paths or not isinstance(given.get("store", False), bool):
        raise OptionError(
            f"{arm}: answers of earlier runs are not for arms; make a run of it alone"
        )
    return replace(shared, drafter=drafter, **given)


def _names(text: str) -> list[str]:
    """lm-eval hands a list on the command line on as the text that it is."""
    if text.startswith("[") and text.endswith("]"):
        return [name.strip() for name in text[1:-1].split(",")]
    return text.split(":")


def _text(names: Sequence[str]) -> str:
    return ":".join(names)
