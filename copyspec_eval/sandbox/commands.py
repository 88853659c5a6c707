"""What is run in the sandbox, within which limits, and how it ended."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ExitStatus = Literal["ok", "error", "timeout", "output_limit", "killed"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that a program may use.

    Attributes:
        wall_seconds: from its start, including about 0.05 s of overhead.
        cpu_seconds: of each process.
        memory_bytes: address space of each process; of all together where there is a control group.
        file_bytes: of each file; of all files together where the program has its own file system.
        num_files: open in one process.
        num_processes: at a time, including the first; counted before each fork, since the kernel's
            limit covers all processes of a user.
        output_bytes: of standard output. Of standard error as much is kept, from its end.
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
class Command:
    """A command with a minimal environment, starting in an empty, writable folder.

    Attributes:
        arguments: the program's absolute path, then its arguments.
        stdin: its standard input.
        limits: the resources it may use.
        readable: files and folders that it can read beside the system's and Python's.
        writable: folders of the machine that it may write to where it has none of its own there.
        channels: sockets that it gets, under the same descriptors.
    """

    arguments: Sequence[str]
    stdin: bytes = b""
    limits: Limits = DEFAULT_LIMITS
    readable: Sequence[Path] = ()
    writable: Sequence[Path] = ()
    channels: Sequence[socket.socket] = ()


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
