"""One command at one level of containment: started, watched, and ended with all that it started."""

import fcntl
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from copyspec_eval.errors import SandboxError
from copyspec_eval.sandbox.commands import LANDLOCK, Command, ExitStatus, Level, Limits, Outcome

PYTHON = os.path.realpath(sys.executable)

_CHILD = Path(__file__).with_name("child")
# Imported without the packages around it, which may not be readable inside.
_START = f"""\
import json, sys
sys.path.insert(0, {str(_CHILD.parent)!r})
from child.main import main
main(sys.argv[2:], **json.loads(sys.argv[1]))
"""
_STOP_SECONDS = 2.0
_SEALS = 0b1111  # <linux/fcntl.h>: no more seals, not shorter, not longer, no other content
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
"""One thread each, since programs run in parallel."""
_ISOLATED_FOLDER = "/tmp/program"
"""Where a program starts that has its own file system. Not /tmp, in which this package may be."""
_FOLDER_PREFIX = "copyspec-program-"
_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib64"),
    *("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"),
)
_HIDDEN = (
    *("kcore", "kallsyms", "keys", "iomem", "ioports", "kpageflags", "kpagecount", "kpagecgroup"),
    *("slabinfo", "vmallocinfo", "timer_list", "pagetypeinfo", "sched_debug"),
)
"""Files of /proc that describe the whole machine; root without privileges may read some of them."""


_REASON_CHARS, _MESSAGE_BYTES = 200, 256
_GROUP, _END = re.compile(r"group ([0-9]{1,9})"), re.compile(r"(exit|signal) ([0-9]{1,3})")


@dataclass(slots=True)
class Watch:
    """A program that runs, and what it has printed so far."""

    process: subprocess.Popen[bytes]  # that of `child`; piped if there is to be an outcome
    control: socket.socket  # on which `child` reports
    limits: Limits
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    group: int = 0  # the program's process group, as `child` numbers it, once that is known
    message: bytes = b""

    def outcome(self) -> Outcome:
        """Wait for the end; the caller must stop `child` afterwards."""
        deadline = time.monotonic() + self.limits.wall_seconds
        outputs = ((self.process.stdout, self.stdout), (self.process.stderr, self.stderr))
        printed = {stream.fileno(): text for stream, text in outputs if stream}
        end: str | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(self.control, selectors.EVENT_READ)
            for descriptor in printed:
                os.set_blocking(descriptor, False)
                selector.register(descriptor, selectors.EVENT_READ)
            while end is None and not self._exceeds_output():
                left = deadline - time.monotonic()
                if left <= 0:
                    reason = f"over {self.limits.wall_seconds:g} s of wall time"
                    return self._made("timeout", reason)
                for key, _ in selector.select(left):
                    if key.fd not in printed:
                        end = self._end_message()
                    elif not self._read(key.fd, printed[key.fd]):
                        selector.unregister(key.fd)
        for descriptor, text in printed.items():
            self._read(descriptor, text)  # the last output is still in the pipes
        return self._end_outcome(end or "")

    def _end_message(self) -> str | None:
        """How the program ended, by `child`; "" if that ended silently; None so far."""
        try:
            chunk = self.control.recv(_MESSAGE_BYTES)
        except OSError:
            chunk = b""
        self.message = (self.message + chunk)[:_MESSAGE_BYTES]
        first, _, rest = self.message.decode(errors="replace").partition("\n")
        if match := _GROUP.fullmatch(first):
            self.group = int(match[1])
        end, newline, _ = rest.partition("\n")
        return end if newline or not chunk else None

    def _read(self, descriptor: int, text: bytearray) -> bool:
        """Read what is available, up to the limit; False at the end of the stream."""
        try:
            chunk = os.read(descriptor, self.limits.output_bytes + 1)
        except BlockingIOError:
            return True
        text += chunk
        # Warnings make no answer wrong; their end says why a program failed.
        del self.stderr[: -self.limits.output_bytes]
        return bool(chunk)

    def _exceeds_output(self) -> bool:
        return len(self.stdout) > self.limits.output_bytes

    def _end_outcome(self, message: str) -> Outcome:
        limits, end = self.limits, _END.fullmatch(message)
        kind, number = (end[1], int(end[2])) if end else ("", 0)
        if self._exceeds_output():
            return self._made("output_limit", f"over {limits.output_bytes / 1024:g} KiB of output")
        if kind == "exit":
            reason = f"exit code {number}: {self._last_line()}".rstrip(": ")
            return self._made("error", reason) if number else self._made("ok", "")
        if kind == "signal" and number == signal.SIGXCPU:
            return self._made("timeout", f"over {limits.cpu_seconds} s of processor time")
        if message == "processes":
            return self._made("killed", f"over {limits.num_processes} processes")
        if kind == "signal":
            return self._made("killed", f"killed by signal {number}")
        if not self.group:
            reason = f"the sandbox ended before its program began ({self._last_line()})"
            raise SandboxError(f"{reason}; remove the cause and run again")
        return self._made("killed", f"the sandbox ended early: {self._last_line()}")

    def _made(self, status: ExitStatus, reason: str) -> Outcome:
        text = self.stdout[: self.limits.output_bytes].decode(errors="replace")
        return Outcome(status, text, reason)

    def _last_line(self) -> str:
        lines = self.stderr.decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return " ".join(last.split())[:_REASON_CHARS]


def run_at(level: Level, command: Command) -> Outcome:
    """Run a command at a level until it ends or exceeds a limit."""
    with started(level, command, subprocess.PIPE) as watch:
        return watch.outcome()


@contextmanager
def started(level: Level, command: Command, output: int) -> Iterator[Watch]:
    """A command that runs at a level, and all that it starts; `output` is for `Popen`."""
    limits, readable = command.limits, _readable_paths(command.readable)
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(_temporary_folder()) if level.shared else _ISOLATED_FOLDER
            ours, theirs = map(stack.enter_context, socket.socketpair())
            settings = _settings(level, command, readable, folder, theirs.fileno())
            process = subprocess.Popen(
                [
                    *(() if level.shared else _bubblewrap(readable, limits.file_bytes)),
                    *(PYTHON, "-I", "-S", "-c", _START, settings, *command.arguments),
                ],
                stdin=stack.enter_context(_sealed(command.stdin)),
                stdout=output,
                stderr=output,
                cwd="/",
                env=_ENVIRONMENT | {"HOME": folder, "TMPDIR": folder},
                start_new_session=True,
                pass_fds=[theirs.fileno(), *(channel.fileno() for channel in command.channels)],
            )
        except OSError as error:
            reason = f"cannot start the sandbox ({error}); remove the cause and run again"
            raise SandboxError(reason) from error
        theirs.close()
        watch = Watch(process, ours, limits)
        stack.callback(_stop, watch, level.shared)
        yield watch


def _stop(watch: Watch, shared: bool) -> None:
    """End `child`, and with it all processes that it started, and wait for it."""
    watch.control.close()
    with watch.process as process:  # closes its streams and waits
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
    if shared and watch.group > 1:
        # If the sandbox itself was stopped, nothing else ends the program.
        with suppress(OSError):
            os.killpg(watch.group, signal.SIGKILL)


def _settings(
    level: Level, command: Command, readable: Sequence[str], folder: str, control: int
) -> str:
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
        "files": files if level == LANDLOCK else None,
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


def _readable_paths(readable: Sequence[Path]) -> list[str]:
    """The system, Python, and `readable`; where they are links, the targets too."""
    wanted = [*_SYSTEM, sys.base_prefix, str(_CHILD), *map(str, readable)]
    paths = {os.path.abspath(path) for path in wanted if os.path.exists(path)}  # noqa: PTH100, PTH110
    return sorted(paths | {os.path.realpath(path) for path in paths})


def _bubblewrap(readable: Sequence[str], num_bytes: int) -> list[str]:
    """Words to put before a command, to run it in a file system of these paths.

    Each of the writable folders in it, /tmp and /dev/shm, has `num_bytes`. /proc is read-only,
    since the kernel may let root of a user namespace write to /proc/sys.
    """
    covered = [f"/proc/{name}" for name in _HIDDEN if Path("/proc", name).exists()]
    folder = ("--size", str(num_bytes), "--perms", "1777", "--tmpfs")
    return [
        *("bwrap", "--unshare-all", "--die-with-parent", "--as-pid-1", "--cap-drop", "ALL"),
        *("--proc", "/proc"),
        *(word for path in covered for word in ("--ro-bind", "/dev/null", path)),
        *("--remount-ro", "/proc", "--dev", "/dev", *folder, "/dev/shm", "--remount-ro", "/dev"),
        *(*folder, "/tmp"),
        *(word for path in readable for word in ("--ro-bind", os.path.realpath(path), path)),
        *("--remount-ro", "/", "--"),
    ]


@contextmanager
def _sealed(data: bytes) -> Iterator[int]:
    """A descriptor to read `data` from, in a file in memory that, on Linux, nobody can change."""
    linux = hasattr(os, "memfd_create")
    memory = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) if linux else -1
    with os.fdopen(memory, "r+b") if linux else tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        if linux:
            os.fchmod(memory, 0o400)
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
        yield file.fileno()


@contextmanager
def _temporary_folder() -> Iterator[str]:
    _sweep()
    folder = tempfile.mkdtemp(prefix=f"{_FOLDER_PREFIX}{os.getpid()}-")
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(descriptor)
        _remove(folder)


@cache
def _sweep() -> None:
    """Remove the folders of processes that were killed.

    The lock of a folder in use holds in every container that shares it, where process numbers mean
    nothing. The number covers the moment before the lock is taken.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*-*"):
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                process = Path("/proc", folder.name.split("-")[2])
                if os.fstat(descriptor).st_uid == os.geteuid() and not process.exists():
                    _remove(str(folder))
            finally:
                os.close(descriptor)


def _remove(folder: str) -> None:
    # Commands remove any depth, and unreadable files.
    for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        subprocess.run([*command, folder], check=False, capture_output=True)
