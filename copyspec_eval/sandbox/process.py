"""One command at one level of containment: started, and ended with all that it started."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress

from copyspec_eval.errors import SandboxError
from copyspec_eval.sandbox.cgroups import limited_memory
from copyspec_eval.sandbox.commands import Command, Outcome
from copyspec_eval.sandbox.folders import temporary_folder
from copyspec_eval.sandbox.levels import CHILD, Level, bubblewrap, readable_paths
from copyspec_eval.sandbox.watch import Watch

PYTHON = os.path.realpath(sys.executable)

# Imported without the packages around it, which may not be readable inside.
_START = "import sys; sys.path.insert(0, {!r}); from child.main import start; start()"
_STOP_SECONDS = 2.0
_SEALS = 0b1111  # <linux/fcntl.h>: no more seals, not shorter, not longer, no other content
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
"""One thread each, since programs run in parallel."""
_ISOLATED_FOLDER = "/tmp/program"
"""Where a program starts that has its own file system. Not /tmp, in which this package may be."""


def run_at(level: Level, command: Command) -> Outcome:
    """Run a command at a level until it ends or exceeds a limit.

    Raises:
        SandboxError: it cannot be started.
    """
    with started(level, command, subprocess.PIPE) as watch:
        return watch.outcome()


@contextmanager
def started(level: Level, command: Command, output: int) -> Iterator[Watch]:
    """A command that runs at a level, and is ended with all that it started.

    `output` is where standard output and error go, `subprocess.PIPE` or `DEVNULL`.

    Raises:
        SandboxError: it cannot be started.
    """
    with ExitStack() as stack:
        try:
            watch = stack.enter_context(_started(level, command, output))
        except OSError as error:
            raise SandboxError(
                f"cannot start the sandbox ({error}); remove the cause and run again"
            ) from error
        yield watch


@contextmanager
def _started(level: Level, command: Command, output: int) -> Iterator[Watch]:
    limits, readable = command.limits, readable_paths(command.readable)
    prefix = [] if level.shared else bubblewrap(readable, limits.file_bytes)
    ours, theirs = socket.socketpair()
    with (
        temporary_folder() if level.shared else nullcontext(_ISOLATED_FOLDER) as folder,
        ours,
        _sealed(command.stdin) as stdin,
        limited_memory(limits.memory_bytes) as memory,
    ):
        settings = _settings(level, command, readable, folder, theirs.fileno())
        start = _START.format(str(CHILD.parent))
        with theirs:
            process = subprocess.Popen(
                [
                    *(memory.prefix if memory else ()),
                    *prefix,
                    *(PYTHON, "-I", "-S", "-c", start, settings, *command.arguments),
                ],
                stdin=stdin,
                stdout=output,
                stderr=output,
                cwd="/",
                env=_ENVIRONMENT | {"HOME": folder, "TMPDIR": folder},
                start_new_session=True,
                pass_fds=[theirs.fileno(), *(channel.fileno() for channel in command.channels)],
            )
        watch = Watch(process, ours, limits, memory)
        try:
            yield watch
        finally:
            _stop(process, ours)
            if level.shared and watch.group > 1:
                # If the sandbox itself was stopped, nothing else ends the program.
                with suppress(OSError):
                    os.killpg(watch.group, signal.SIGKILL)


@contextmanager
def _sealed(data: bytes) -> Iterator[int]:
    """A descriptor to read `data` from, in a file in memory that nobody can change."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            yield file.fileno()
        return
    descriptor = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(descriptor, "r+b") as file:
        file.write(data)
        file.seek(0)
        os.fchmod(descriptor, 0o400)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        yield descriptor


def _settings(
    level: Level, command: Command, readable: Sequence[str], folder: str, control: int
) -> str:
    """The first argument of `child`."""
    limits = command.limits
    files = {
        "readable": readable,
        # Python looks for packages by listing the folders that they are in.
        "listable": [str(path.parent) for path in command.readable],
        "writable": [folder, *map(str, command.writable)],
    }
    settings = {
        "control": control,
        "folder": folder,
        "files": files if level.landlock else None,
        "shared": level.shared,
        "num_processes": limits.num_processes,
        "limits": {
            "RLIMIT_CPU": limits.cpu_seconds,
            "RLIMIT_AS": limits.memory_bytes,
            "RLIMIT_FSIZE": limits.file_bytes,
            "RLIMIT_NOFILE": limits.num_files,
            "RLIMIT_CORE": 0,
        },
    }
    return json.dumps(settings)


def _stop(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    """End `child`, and with it all processes that it started, and wait for it."""
    control.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()
