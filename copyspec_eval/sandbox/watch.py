"""Reads what a program prints until it ends or exceeds a limit."""

import os
import re
import selectors
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field

from copyspec_eval.errors import SandboxError
from copyspec_eval.sandbox.cgroups import MemoryGroup
from copyspec_eval.sandbox.commands import ExitStatus, Limits, Outcome

_REASON_CHARS, _MESSAGE_BYTES = 200, 256
_GROUP, _END = re.compile(r"group ([0-9]{1,9})"), re.compile(r"(exit|signal) ([0-9]{1,3})")


@dataclass(slots=True)
class Watch:
    """A program that runs, and what it has printed so far."""

    process: subprocess.Popen[bytes]  # that of `child`; piped if there is to be an outcome
    control: socket.socket  # on which `child` reports
    limits: Limits
    memory: MemoryGroup | None
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
        """How the program ended, by `child`; "" if that ended without a word; None so far."""
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
            return self._made("error", reason, number) if number else self._made("ok", "", 0)
        if kind == "signal" and number == signal.SIGXCPU:
            return self._made("timeout", f"over {limits.cpu_seconds} s of processor time")
        if message == "processes":
            return self._made("killed", f"over {limits.num_processes} processes")
        if self.memory is not None and self.memory.has_killed():
            return self._made("killed", f"over {limits.memory_bytes / 2**20:g} MiB of memory")
        if kind == "signal":
            return self._made("killed", f"killed by signal {number}")
        if not self.group:
            reason = f"the sandbox ended before its program began ({self._last_line()})"
            raise SandboxError(f"{reason}; remove the cause and run again")
        return self._made("killed", f"the sandbox ended early: {self._last_line()}")

    def _made(self, status: ExitStatus, reason: str, code: int | None = None) -> Outcome:
        text = self.stdout[: self.limits.output_bytes].decode(errors="replace")
        return Outcome(status, code, text, reason)

    def _last_line(self) -> str:
        lines = self.stderr.decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return " ".join(last.split())[:_REASON_CHARS]
