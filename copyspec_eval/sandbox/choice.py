"""Which level of containment programs get: the best that works, or the one that is asked for."""

from __future__ import annotations

import logging
import os
from functools import cache

from copyspec_eval.errors import OptionError, SandboxError, unknown_option
from copyspec_eval.sandbox.commands import Command, Outcome
from copyspec_eval.sandbox.levels import BUBBLEWRAP, LANDLOCK, LEVELS, LIMITS, Level
from copyspec_eval.sandbox.process import PYTHON, run_at

logger = logging.getLogger("lm_eval.copyspec")

VARIABLE = "COPYSPEC_SANDBOX"


def level() -> Level:
    """`$COPYSPEC_SANDBOX`, or the best level that works on this machine and contains files.

    Raises:
        OptionError: the one asked for is unknown or does not work here; or none is asked for, and
            none that works contains files.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        for level in (BUBBLEWRAP, LANDLOCK):
            if trial(level).status == "ok":
                return level
        raise OptionError(
            "nothing on this machine contains the programs that a model writes; install "
            f"bubblewrap, or set {VARIABLE}={LIMITS.name} to run them under {LIMITS.description}"
        )
    by_name = {level.name: level for level in LEVELS}
    if name not in by_name:
        raise unknown_option(VARIABLE, name, by_name)
    tried = trial(by_name[name])
    if tried.status != "ok":
        raise OptionError(f"{VARIABLE}={name} does not work on this machine: {tried.reason}")
    return by_name[name]


def levels() -> tuple[Level, ...]:
    """The levels that work on this machine, best first, found by trying."""
    return tuple(level for level in LEVELS if trial(level).status == "ok")


@cache
def trial(level: Level) -> Outcome:
    """How a program that does nothing ends at a level: "ok" if the level works here."""
    try:
        return run_at(level, Command([PYTHON, "-I", "-S", "-c", ""]))
    except SandboxError as error:
        return Outcome("killed", None, "", str(error))


def announce() -> None:
    """Log how programs are contained on this machine and how not, once per process and level."""
    _announce(level())


@cache
def _announce(level: Level) -> None:
    kind = logging.WARNING if level == LIMITS else logging.INFO
    logger.log(kind, "untrusted programs run under %s", level.description)
