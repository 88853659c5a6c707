"""Runs untrusted programs: each in a process of its own, limited, watched, and gone afterwards.

Three levels of containment, the first that works on this machine is taken; `containment` says
which. Whatever the level, `sandbox_child` stands between this process and the program.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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

Status = Literal["ok", "error", "timeout", "output_limit", "killed"]

INSTALLED = (Path(sys.prefix), Path(__file__).parents[1])
"""What a program needs to read to import this package and what is installed beside it."""

_PYTHON = os.path.realpath(sys.executable)
_STOP_SECONDS = 2.0
_REASON_CHARS = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use.

    Attributes:
        wall_seconds: from its start, about 0.05 s of our own included.
        cpu_seconds: of each process.
        memory_bytes: address space of each process.
        file_bytes: of each file; where the program has a file system of its own, of all together.
        num_files: that a process has open.
        num_processes: at a time, the program's own included; counted here before each fork, since
            the kernel's limit is one for all that a user runs.
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
        status: "ok" is exit code 0, "error" any other.
        exit_code: None if it did not exit of itself.
        stdout: what it had printed, at most `Limits.output_bytes`; what is not UTF-8 is replaced.
        reason: one line for people; "" if ok.
    """

    status: Status
    exit_code: int | None
    stdout: str
    reason: str


def run_program(source: str, limits: Limits = DEFAULT_LIMITS) -> Outcome:
    """Run Python source with the standard library alone; its standard input is at its end."""
    command = [_PYTHON, "-I", "-S", "-X", "utf8", "-"]
    return run(command, source.encode(errors="replace"), limits)


def run_all(sources: Sequence[str], limits: Limits = DEFAULT_LIMITS) -> list[Outcome]:
    """`run_program` of each source, on all processors; equal sources are run once."""
    different = list(dict.fromkeys(sources))
    if different:
        announce()
    with ThreadPoolExecutor(_num_processors()) as pool:
        running = pool.map(lambda source: run_program(source, limits), different)
        outcomes = list(tqdm(running, "Running programs", len(different), unit="program"))
    by_source = dict(zip(different, outcomes, strict=True))
    return [by_source[source] for source in sources]


def run(
    arguments: Sequence[str],
    stdin: bytes = b"",
    limits: Limits = DEFAULT_LIMITS,
    readable: Sequence[Path] = (),
) -> Outcome:
    """Run a command with an environment of its own and an empty, writable folder to start in.

    Args:
        arguments: the program's absolute path, then its arguments.
        stdin: its standard input.
        limits: what it may use.
        readable: files and folders, beside the system's and Python's own, that it needs.
    """
    return _run(level(), arguments, stdin, limits, readable)


def announce() -> None:
    """Log `containment`, once per process."""
    _announced()


def containment() -> str:
    """What keeps the programs in on this machine, and what does not; one line."""
    return f"untrusted programs run under {level().says}"


def level() -> Level:
    """The best level that works on this machine."""
    return levels()[0]


@cache
def levels() -> tuple[Level, ...]:
    """The levels that work on this machine, best first, found out by trying; one always does."""
    guard = "import socket\ntry: socket.socket()\nexcept PermissionError: print('guarded')"
    found = [level for level in (BUBBLEWRAP, NAMESPACES) if _prints(level, "print('here')")]
    return (*found, GUARDED if _prints(GUARDED, guard) else UNGUARDED)


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
    ours, theirs = socket.socketpair()
    with level.folder() as folder, ours, tempfile.TemporaryFile() as given:
        given.write(stdin)
        given.seek(0)
        settings = _settings(level, limits, mounts, folder, theirs.fileno())
        child = [_PYTHON, "-I", "-S", str(CHILD), settings, *arguments]
        with theirs:
            try:
                process = subprocess.Popen(
                    [*level.prefix(limits.file_bytes, mounts), *child],
                    stdin=given,
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
    """All that a program finds in its environment; one thread, since programs run side by side."""
    return {"PATH": "/usr/bin:/bin", "HOME": folder, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}


def _stop(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    """End `sandbox_child`, and with it all that it has started, and wait for that."""
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
    """Reads what a program prints until it ends, or has to."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    limits: Limits
    printed: dict[str, bytearray] = field(
        default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()}
    )

    def outcome(self) -> Outcome:
        """Wait for the end; `sandbox_child` is still to be stopped afterwards."""
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
                if self._is_over():
                    return self._too_much()
                if "control" in ready:
                    return self._ended(self.control.recv(64).decode())
        return self._made("timeout", None, f"over {self.limits.wall_seconds:g} s of wall time")

    def _register(self, selector: selectors.BaseSelector, name: str) -> None:
        stream = self._stream(name)
        os.set_blocking(stream.fileno(), False)
        selector.register(stream, selectors.EVENT_READ, name)

    def _stream(self, name: str) -> IO[bytes]:
        stream: IO[bytes] = getattr(self.process, name)
        return stream

    def _read(self, name: str) -> bool:
        """Take what there is, up to the limit; False at the end of the stream."""
        try:
            chunk = os.read(self._stream(name).fileno(), self.limits.output_bytes + 1)
        except BlockingIOError:
            return True
        self.printed[name] += chunk
        return bool(chunk)

    def _is_over(self) -> bool:
        return sum(map(len, self.printed.values())) > self.limits.output_bytes

    def _ended(self, message: str) -> Outcome:
        """The outcome once the program is gone; what it printed last is still in the pipes."""
        for name in self.printed:
            self._read(name)
        if self._is_over():
            return self._too_much()
        kind, _, number = message.partition(" ")
        if kind == "exit":
            return self._exited(int(number))
        if kind == "signal":
            if int(number) == signal.SIGXCPU:
                seconds = self.limits.cpu_seconds
                return self._made("timeout", None, f"over {seconds} s of processor time")
            return self._made("killed", None, f"killed by signal {number}")
        if kind == "processes":
            return self._made("killed", None, f"over {self.limits.num_processes} processes")
        return self._made("killed", None, f"the sandbox ended early: {self._last_line()}")

    def _exited(self, code: int) -> Outcome:
        if code == 0:
            return self._made("ok", 0, "")
        return self._made("error", code, f"exit code {code}: {self._last_line()}".rstrip(": "))

    def _too_much(self) -> Outcome:
        limit = self.limits.output_bytes / 1024
        return self._made("output_limit", None, f"over {limit:g} KiB of output")

    def _made(self, status: Status, code: int | None, reason: str) -> Outcome:
        text = bytes(self.printed["stdout"][: self.limits.output_bytes])
        return Outcome(status, code, text.decode(errors="replace"), reason)

    def _last_line(self) -> str:
        lines = bytes(self.printed["stderr"]).decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return " ".join(last.split())[:_REASON_CHARS]
