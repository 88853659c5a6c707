"""Runs programs at the best level of containment that works, or at the one that is asked for."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tqdm.contrib.concurrent import thread_map

from copyspec_eval.errors import OptionError, SandboxError, unknown_option
from copyspec_eval.sandbox.commands import LEVELS, LIMITS, Command, Level, Limits, Outcome
from copyspec_eval.sandbox.process import PYTHON, run_at, started

logger = logging.getLogger("lm_eval.copyspec")

VARIABLE = "COPYSPEC_SANDBOX"

INSTALLED = (Path(sys.prefix), Path(__file__).parents[1])
"""What a program must read to import this package and those installed beside it."""

# Isolated from the user's folders, Python does not find a package that PYTHONPATH led to.
_START = """\
import sys
if {0!r} not in sys.path: sys.path.insert(0, {0!r})
from copyspec_eval.{1} import {2}
{2}()
"""


def level() -> Level:
    """`$COPYSPEC_SANDBOX` or the best level that contains files; OptionError if none works."""
    name = os.environ.get(VARIABLE)
    if not name:
        for best in LEVELS:
            if best != LIMITS and trial(best).status == "ok":
                return best
        raise OptionError(
            "no sandbox works on this machine for the programs that a model writes; install "
            f"bubblewrap, or set {VARIABLE}={LIMITS.name} to run them under {LIMITS.description}"
        )
    by_name = {level.name: level for level in LEVELS}
    if name not in by_name:
        raise unknown_option(VARIABLE, name, by_name)
    tried = trial(by_name[name])
    if tried.status != "ok":
        raise OptionError(f"{VARIABLE}={name} does not work on this machine: {tried.reason}")
    return by_name[name]


@cache
def trial(level: Level) -> Outcome:
    """How a program that does nothing ends at a level: "ok" if the level works here."""
    try:
        return run_at(level, Command([PYTHON, "-I", "-S", "-c", ""]))
    except SandboxError as error:
        return Outcome("killed", "", str(error))


@cache
def announce(level: Level) -> None:
    """Log how programs are contained on this machine and how not, once per process and level."""
    kind = logging.WARNING if level == LIMITS else logging.INFO
    logger.log(kind, "untrusted programs run under %s", level.description)


def function(place: str, *arguments: str, **options: Any) -> Command:
    """A command that runs a function, "module:name" in this package; `options` as of `Command`."""
    start = _START.format(str(Path(__file__).parents[2]), *place.split(":"))
    return Command([sys.executable, "-I", "-c", start, *arguments], readable=INSTALLED, **options)


def run(command: Command) -> Outcome:
    """Run a command until it ends or exceeds a limit; `SandboxError` if it cannot be started."""
    return run_at(level(), command)


@contextmanager
def running(command: Command) -> Iterator[None]:
    """Have a command run, its output discarded, until the caller is done; closes its channels."""
    with started(level(), command, subprocess.DEVNULL):
        for channel in command.channels:
            channel.close()
        yield


def run_program(source: str, limits: Limits | None = None) -> Outcome:
    """Run Python source with the standard library only and empty standard input."""
    arguments = [PYTHON, "-I", "-S", "-X", "utf8", "-"]
    return run(Command(arguments, source.encode(errors="replace"), limits or Limits()))


def run_all(sources: Sequence[str]) -> list[Outcome]:
    """`run_program` each source, in parallel on all processors; equal sources are run once."""
    unique = list(dict.fromkeys(sources))
    if unique:
        announce(level())
    # Those that this process may use, where the system tells.
    affinity = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    how = {"max_workers": len(affinity(0)), "desc": "Running programs", "unit": "program"}
    outcomes = thread_map(run_program, unique, **how)
    by_source = dict(zip(unique, outcomes, strict=True))
    return [by_source[source] for source in sources]
