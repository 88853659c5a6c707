"""Which level of containment programs get: the best that works, or the one that is asked for."""

from __future__ import annotations

import logging
import os
from functools import cache

from copyspec_eval.errors import OptionError, SandboxError, unknown_option
from copyspec_eval.scoring.sandbox.commands import Command
from copyspec_eval.scoring.sandbox.levels import (
    BUBBLEWRAP,
    GUARDED,
    LANDLOCK,
    NAMESPACES,
    UNGUARDED,
    Level,
)
from copyspec_eval.scoring.sandbox.process import PYTHON, run_at

logger = logging.getLogger("lm_eval.copyspec")

VARIABLE = "COPYSPEC_SANDBOX"

_GUARD = "import socket\ntry: socket.socket()\nexcept PermissionError: print('guarded')"


def level() -> Level:
    """`$COPYSPEC_SANDBOX`, or the best level that works on this machine.

    Raises:
        OptionError: the one asked for is unknown or does not work here; or none is asked for, and
            none that works contains files.
    """
    working = {level.name: level for level in reversed(levels())}
    name = os.environ.get(VARIABLE)
    if not name:
        best = levels()[0]
        if best.name == GUARDED.name:
            raise OptionError(
                "nothing on this machine contains the programs that a model writes; install "
                f"bubblewrap, or set {VARIABLE}={best.name} to run them under {best.description}"
            )
        return best
    if name not in working:
        names = [level.name for level in (BUBBLEWRAP, NAMESPACES, LANDLOCK, GUARDED)]
        if name not in names:
            raise unknown_option(VARIABLE, name, names)
        raise OptionError(
            f"{VARIABLE}={name} does not work on this machine; these do: {', '.join(working)}"
        )
    return working[name]


@cache
def levels() -> tuple[Level, ...]:
    """The levels that work on this machine, best first, found by trying; there is always one."""
    isolated = [level for level in (BUBBLEWRAP, NAMESPACES) if _prints(level, "print('here')")]
    kept = [LANDLOCK] if _prints(LANDLOCK, _GUARD) else []
    return (*isolated, *kept, GUARDED if _prints(GUARDED, _GUARD) else UNGUARDED)


def announce() -> None:
    """Log `containment`, once per process and level."""
    _announced(level())


def containment() -> str:
    """How programs are contained on this machine, and how not; one line."""
    return f"untrusted programs run under {level().description}"


def _prints(level: Level, source: str) -> bool:
    try:
        outcome = run_at(level, Command([PYTHON, "-I", "-S", "-c", source]))
    except SandboxError:
        return False
    return outcome.status == "ok" and bool(outcome.stdout)


@cache
def _announced(level: Level) -> None:
    kind = logging.WARNING if level.name == GUARDED.name else logging.INFO
    logger.log(kind, "untrusted programs run under %s", level.description)
