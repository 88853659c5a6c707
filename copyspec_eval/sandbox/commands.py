"""What is run in the sandbox, how it is contained, within which limits, and how it ended."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ExitStatus = Literal["ok", "error", "timeout", "output_limit", "killed"]


@dataclass(frozen=True, slots=True)
class Level:
    """A way to contain a program."""

    name: str
    description: str  # what is contained and what is not, one sentence
    shared: bool  # whether it has the machine's files, processes and network, or others


_LIMITS = "limits on time, memory, output and processes"
BUBBLEWRAP = Level(
    "bubblewrap",
    "bubblewrap: no network, no other processes, no files but the system's and Python's "
    f"(read-only), {_LIMITS}",
    shared=False,
)
LANDLOCK = Level(
    "landlock",
    "Landlock: no network, nothing sent to other processes, no files but the system's and "
    f"Python's (read-only), {_LIMITS}; names and sizes of files can be seen, and a program's own "
    "files are limited one by one",
    shared=True,
)
LIMITS = Level(
    "limits",
    f"{_LIMITS} only; files are NOT contained: a program can read and change what this user can "
    "(and use the network, where the system is not Linux)",
    shared=True,
)
LEVELS = (BUBBLEWRAP, LANDLOCK, LIMITS)  # the strictest first


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that a program may use."""

    wall_seconds: float = 10.0  # from its start, including about 0.05 s of overhead
    cpu_seconds: int = 8  # of each process
    memory_bytes: int = 2**30  # address space of each process
    # Of each file; of all files together where the program has its own file system.
    file_bytes: int = 2**24
    num_files: int = 128  # open in one process
    # At a time, counted before each fork: the kernel's limit covers all processes of a user.
    num_processes: int = 16
    output_bytes: int = 2**16  # of standard output, and of the end of standard error


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Command:
    """A command with a minimal environment, starting in an empty, writable folder."""

    arguments: Sequence[str]
    stdin: bytes = b""
    limits: Limits = DEFAULT_LIMITS
    readable: Sequence[Path] = ()  # beside the system's and Python's files
    writable: Sequence[Path] = ()  # the machine's, unless its file system has such folders
    channels: Sequence[socket.socket] = ()  # which it gets under the same descriptors


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended."""

    status: ExitStatus  # "ok" for exit code 0, "error" for any other
    stdout: str  # at most `Limits.output_bytes`; invalid UTF-8 is replaced
    reason: str  # why it failed, one line; "" if ok
