"""Runs untrusted programs, each in a limited process that leaves nothing running afterwards.

Of three levels of containment the first that works on this machine is used; `containment` names
it. At every level, `sandbox_child` runs between this process and the program.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Literal

from tqdm import tqdm

from copyspec_eval.scoring.levels import (
    BUBBLEWRAP,
    CHILD,
    GUARDED,
    NAMESPACES,
    UNGUARDED,
    Level,
    Mount,
    mounts_of,
)

logger = logging.getLogger("lm_eval.copyspec")

ExitStatus = Literal["ok", "error", "timeout", "output_limit", "killed"]

INSTALLED = (Path(sys.prefix), Path(__file__).parents[1])
"""What a program must read to import this package and those installed beside it."""

_PYTHON = os.path.realpath(sys.executable)
_STOP_SECONDS = 2.0
_SET_DUMPABLE = 4  # <sys/prctl.h>
_REASON_CHARS = 200
_MESSAGE_BYTES = 256
_GROUP, _END = re.compile(r"group ([0-9]{1,9})"), re.compile(r"(exit|signal) ([0-9]{1,3})")


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that a program may use.

    Attributes:
        wall_seconds: from its start, including about 0.05 s of overhead.
        cpu_seconds: of each process.
        memory_bytes: address space of each process.
        file_bytes: of each file; of all files together where the program has its own file system.
        num_files: open in one process.
        num_processes: at a time, including the first; counted before each fork, since the kernel's
            limit covers all processes of a user.
        output_bytes: of standard output and standard error together.
    """

    wall_seconds: float = 10.0
    cpu_seconds: int = 8
    memory_bytes: int = 2**30
    file_bytes: int = 2**24
    num_files: int = 128
    num_processes: int = 16
    output_bytes: int = 2**16


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended.

    Attributes:
        status: "ok" for exit code 0, "error" for any other.
        exit_code: None if the program was stopped.
        stdout: what it printed, at most `Limits.output_bytes`; invalid UTF-8 is replaced.
        reason: why it failed, one line; "" if ok.
    """

    status: ExitStatus
    exit_code: int | None
    stdout: str
    reason: str


def run_program(source: str, limits: Limits = DEFAULT_LIMITS) -> Outcome:
    """Run Python source with the standard library only and empty standard input."""
    command = [_PYTHON, "-I", "-S", "-X", "utf8", "-"]
    return run(command, source.encode(errors="replace"), limits)


def run_all(sources: Sequence[str], limits: Limits = DEFAULT_LIMITS) -> list[Outcome]:
    """`run_program` each source, in parallel on all processors; equal sources are run once."""
    unique = list(dict.fromkeys(sources))
    if unique:
        announce()
    with ThreadPoolExecutor(_num_processors()) as pool:
        running = pool.map(lambda source: run_program(source, limits), unique)
        outcomes = list(tqdm(running, "Running programs", len(unique), unit="program"))
    by_source = dict(zip(unique, outcomes, strict=True))
    return [by_source[source] for source in sources]


def run(
    arguments: Sequence[str],
    stdin: bytes = b"",
    limits: Limits = DEFAULT_LIMITS,
    readable: Sequence[Path] = (),
) -> Outcome:
    """Run a command with a minimal environment, starting in an empty, writable folder.

    Args:
        arguments: the program's absolute path, then its arguments.
        stdin: its standard input.
        limits: the resources it may use.
        readable: files and folders that it can read beside the system's and Python's.
    """
    return _run(level(), arguments, stdin, limits, readable)


def announce() -> None:
    """Log `containment`, once per process."""
    _announced()


def containment() -> str:
    """How programs are contained on this machine, and how not; one line."""
    return f"untrusted programs run under {level().description}"


def level() -> Level:
    """The best level that works on this machine."""
    return levels()[0]


@cache
def levels() -> tuple[Level, ...]:
    """The levels that work on this machine, best first, found by trying; there is always one."""
    guard = "import socket\ntry: socket.socket()\nexcept PermissionError: print('guarded')"
    isolated = [level for level in (BUBBLEWRAP, NAMESPACES) if _prints(level, "print('here')")]
    return (*isolated, GUARDED if _prints(GUARDED, guard) else UNGUARDED)


def _prints(level: Level, source: str) -> bool:
    command = [_PYTHON, "-I", "-S", "-c", source]
    outcome = _run(level, command, b"", DEFAULT_LIMITS, ())
    return outcome.status == "ok" and bool(outcome.stdout)


@cache
def _announced() -> None:
    contained = not level().shared
    logger.log(logging.INFO if contained else logging.WARNING, "%s", containment())


def _num_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _run(
    level: Level,
    arguments: Sequence[str],
    stdin: bytes,
    limits: Limits,
    readable: Sequence[Path],
) -> Outcome:
    mounts = mounts_of(readable)
    if level.shared:
        _keep_memory_private()
    ours, theirs = socket.socketpair()
    with level.folder() as folder, ours, tempfile.TemporaryFile() as stdin_file:
        stdin_file.write(stdin)
        stdin_file.seek(0)
        os.fchmod(stdin_file.fileno(), 0o400)
        settings = _settings(level, limits, mounts, folder, theirs.fileno())
        child = [_PYTHON, "-I", "-S", str(CHILD), settings, *arguments]
        with theirs:
            try:
                process = subprocess.Popen(
                    [*level.prefix(limits.file_bytes, mounts), *child],
                    stdin=stdin_file,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd="/",
                    env=_environment(folder),
                    start_new_session=True,
                    pass_fds=[theirs.fileno()],
                )
            except OSError as error:
                return Outcome("killed", None, "", f"cannot start the sandbox: {error}")
        watch = _Watch(process, ours, limits)
        try:
            return watch.outcome()
        finally:
            _stop(process, ours)
            if level.shared and watch.group > 1:
                # If the sandbox itself was stopped, nothing else ends the program.
                with suppress(OSError):
                    os.killpg(watch.group, signal.SIGKILL)


@cache
def _keep_memory_private() -> None:
    """Keep programs from reading and writing this process's memory, its keys among it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def _settings(
    level: Level, limits: Limits, mounts: Sequence[Mount], folder: str, control: int
) -> str:
    """The first argument of `sandbox_child`."""
    return json.dumps(
        {
            "control": control,
            "folder": folder,
            "mounts": mounts if level.builds_root else None,
            "shared": level.shared,
            "num_processes": limits.num_processes,
            "folder_bytes": limits.file_bytes,
            "limits": {
                "RLIMIT_CPU": limits.cpu_seconds,
                "RLIMIT_AS": limits.memory_bytes,
                "RLIMIT_FSIZE": limits.file_bytes,
                "RLIMIT_NOFILE": limits.num_files,
                "RLIMIT_CORE": 0,
            },
        }
    )


def _environment(folder: str) -> dict[str, str]:
    """A program's whole environment; one thread each, since programs run in parallel."""
    return {"PATH": "/usr/bin:/bin", "HOME": folder, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}


def _stop(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    """End `sandbox_child`, and with it all processes that it started, and wait for it."""
    control.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


@dataclass(slots=True)
class _Watch:
    """Reads what a program prints until it ends or exceeds a limit.

    Attributes:
        group: the program's process group, as `sandbox_child` numbers it; 0 before that is known.
    """

    process: subprocess.Popen[bytes]
    control: socket.socket
    limits: Limits
    printed: dict[str, bytearray] = field(
        default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()}
    )
    group: int = 0
    said: bytes = b""

    def outcome(self) -> Outcome:
        """Wait for the end; the caller must stop `sandbox_child` afterwards."""
        deadline = time.monotonic() + self.limits.wall_seconds
        with selectors.DefaultSelector() as selector:
            for name in self.printed:
                self._register(selector, name)
            selector.register(self.control, selectors.EVENT_READ, "control")
            while (left := deadline - time.monotonic()) > 0:
                ready = {key.data: key for key, _ in selector.select(left)}
                for name in ready.keys() & self.printed.keys():
                    if not self._read(name):
                        selector.unregister(ready[name].fileobj)
                if self._exceeds_output():
                    return self._output_limit()
                if "control" in ready and (message := self._heard()) is not None:
                    return self._end_outcome(message)
        return self._make("timeout", None, f"over {self.limits.wall_seconds:g} s of wall time")

    def _heard(self) -> str | None:
        """What `sandbox_child` says of the program's end; "" if it ended without; None so far."""
        try:
            chunk = self.control.recv(_MESSAGE_BYTES)
        except OSError:
            chunk = b""
        self.said = (self.said + chunk)[:_MESSAGE_BYTES]
        first, _, rest = self.said.decode(errors="replace").partition("\n")
        if match := _GROUP.fullmatch(first):
            self.group = int(match[1])
        end, newline, _ = rest.partition("\n")
        return end if newline or not chunk else None

    def _register(self, selector: selectors.BaseSelector, name: str) -> None:
        stream = self._stream(name)
        os.set_blocking(stream.fileno(), False)
        selector.register(stream, selectors.EVENT_READ, name)

    def _stream(self, name: str) -> IO[bytes]:
        stream: IO[bytes] = getattr(self.process, name)
        return stream

    def _read(self, name: str) -> bool:
        """Read what is available, up to the limit; False at the end of the stream."""
        try:
            chunk = os.read(self._stream(name).fileno(), self.limits.output_bytes + 1)
        except BlockingIOError:
            return True
        self.printed[name] += chunk
        return bool(chunk)

    def _exceeds_output(self) -> bool:
        return sum(map(len, self.printed.values())) > self.limits.output_bytes

    def _end_outcome(self, message: str) -> Outcome:
        """The outcome once the program has ended; its last output is still in the pipes."""
        for name in self.printed:
            self._read(name)
        if self._exceeds_output():
            return self._output_limit()
        if match := _END.fullmatch(message):
            kind, number = match[1], int(match[2])
            if kind == "exit":
                return self._exit_outcome(number)
            if number == signal.SIGXCPU:
                seconds = self.limits.cpu_seconds
                return self._make("timeout", None, f"over {seconds} s of processor time")
            return self._make("killed", None, f"killed by signal {number}")
        if message == "processes":
            return self._make("killed", None, f"over {self.limits.num_processes} processes")
        return self._make("killed", None, f"the sandbox ended early: {self._last_line()}")

    def _exit_outcome(self, code: int) -> Outcome:
        if code == 0:
            return self._make("ok", 0, "")
        return self._make("error", code, f"exit code {code}: {self._last_line()}".rstrip(": "))

    def _output_limit(self) -> Outcome:
        limit = self.limits.output_bytes / 1024
        return self._make("output_limit", None, f"over {limit:g} KiB of output")

    def _make(self, status: ExitStatus, code: int | None, reason: str) -> Outcome:
        text = bytes(self.printed["stdout"][: self.limits.output_bytes])
        return Outcome(status, code, text.decode(errors="replace"), reason)

    def _last_line(self) -> str:
        lines = bytes(self.printed["stderr"]).decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return " ".join(last.split())[:_REASON_CHARS]
