"""Runs commands and Python programs at the level that `choice` takes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from copyspec_eval.sandbox.choice import announce, level
from copyspec_eval.sandbox.commands import DEFAULT_LIMITS, Command, Limits, Outcome
from copyspec_eval.sandbox.process import PYTHON, run_at, started

INSTALLED = (Path(sys.prefix), Path(__file__).parents[1])
"""What a program must read to import this package and those installed beside it."""

# Isolated from the user's folders, Python does not find a package that PYTHONPATH led to.
_START = """\
import sys
if {0!r} not in sys.path: sys.path.insert(0, {0!r})
from copyspec_eval.{1} import main
main()
"""


def module(name: str, *arguments: str, **options: Any) -> Command:
    """A command that runs `main` of a module of this package; `options` as of `Command`."""
    start = _START.format(str(Path(__file__).parents[2]), name)
    words = [sys.executable, "-I", "-c", start, *arguments]
    return Command(words, readable=INSTALLED, **options)


def run(command: Command) -> Outcome:
    """Run a command until it ends or exceeds a limit.

    Raises:
        SandboxError: it cannot be started.
    """
    return run_at(level(), command)


@contextmanager
def running(command: Command) -> Iterator[None]:
    """Have a command run until the caller is done with it; its channels are closed here.

    What it prints is discarded, and `Limits.wall_seconds` is up to the caller.

    Raises:
        SandboxError: it cannot be started.
    """
    with started(level(), command, subprocess.DEVNULL):
        for channel in command.channels:
            channel.close()
        yield


def run_program(source: str, limits: Limits = DEFAULT_LIMITS) -> Outcome:
    """Run Python source with the standard library only and empty standard input."""
    arguments = [PYTHON, "-I", "-S", "-X", "utf8", "-"]
    return run(Command(arguments, source.encode(errors="replace"), limits))


def run_all(sources: Sequence[str], limits: Limits = DEFAULT_LIMITS) -> list[Outcome]:
    """`run_program` each source, in parallel on all processors; equal sources are run once."""
    unique = list(dict.fromkeys(sources))
    if unique:
        announce()
    # Those that this process may use, where the system tells.
    affinity = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    with ThreadPoolExecutor(len(affinity(0))) as pool:
        running = pool.map(lambda source: run_program(source, limits), unique)
        outcomes = list(tqdm(running, "Running programs", len(unique), unit="program"))
    by_source = dict(zip(unique, outcomes, strict=True))
    return [by_source[source] for source in sources]
