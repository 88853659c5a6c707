"""Ways to contain a program, from the strictest to one that works on every machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

CHILD = Path(__file__).with_name("sandbox_child.py")

Mount = tuple[str, str]
"""A path outside the sandbox, and its path inside."""

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib64"),
    *("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"),
)


@dataclass(frozen=True, slots=True)
class Level:
    """A way to contain a program.

    Attributes:
        name: short name.
        description: what is contained and what is not, one sentence.
        prefix: makes the command that runs another inside, from the space for files in bytes and
            the mounts.
        builds_root: whether `sandbox_child` has to make the mounts itself.
        shared: whether the program shares processes and network with the machine.
        folder: makes the folder in which a program starts, and removes it.
    """

    name: str
    description: str
    prefix: Callable[[int, Sequence[Mount]], list[str]]
    builds_root: bool
    shared: bool
    folder: Callable[[], AbstractContextManager[str]]


def mounts_of(readable: Sequence[Path]) -> list[Mount]:
    """Mounts of all that can be read: the system's programs and libraries, Python, and `readable`.

    Targets of symbolic links are mounted at their real paths too.
    """
    wanted = [*_SYSTEM, sys.base_prefix, str(CHILD), *map(str, readable)]
    paths = {os.path.abspath(path) for path in wanted if os.path.exists(path)}  # noqa: PTH100, PTH110
    targets = paths | {os.path.realpath(path) for path in paths}
    return [(os.path.realpath(target), target) for target in sorted(targets)]


@contextmanager
def _inside() -> Iterator[str]:
    """A folder in the program's own file system, made there by `sandbox_child`.

    Not /tmp itself, in which this package may be mounted.
    """
    yield "/tmp/program"


@contextmanager
def _temporary() -> Iterator[str]:
    """A folder of this machine; these commands remove any depth, and unreadable files."""
    folder = tempfile.mkdtemp(prefix="copyspec-")
    try:
        yield folder
    finally:
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, folder], check=False, capture_output=True)


def _bubblewrap(num_bytes: int, mounts: Sequence[Mount]) -> list[str]:
    """/proc is read-only, since the kernel may let root of a user namespace write to /proc/sys."""
    folder = ("--size", str(num_bytes), "--perms", "1777", "--tmpfs")
    binds = [word for source, target in mounts for word in ("--ro-bind", source, target)]
    return [
        *("bwrap", "--unshare-all", "--die-with-parent", "--as-pid-1", "--cap-drop", "ALL"),
        *(
            "--proc",
            "/proc",
            "--remount-ro",
            "/proc",
            "--dev",
            "/dev",
            *folder,
            "/dev/shm",
            "--remount-ro",
            "/dev",
        ),
        *(*folder, "/tmp", *binds, "--remount-ro", "/", "--"),
    ]


def _namespaces(num_bytes: int, mounts: Sequence[Mount]) -> list[str]:
    options = ("user", "map-root-user", "pid", "net", "mount", "ipc", "uts", "fork", "kill-child")
    return ["unshare", *(f"--{name}" for name in options), "--"]


def _nothing(num_bytes: int, mounts: Sequence[Mount]) -> list[str]:
    return []


_CONTAINED = (
    "no network, no other processes, no files but the system's and Python's (read-only), "
    "limits on time, memory, output and processes"
)
_UNCONTAINED = (
    "limits on time, memory, output and processes only; files are NOT contained: a program can "
    "read and change what this user can"
)
BUBBLEWRAP = Level("bubblewrap", f"bubblewrap: {_CONTAINED}", _bubblewrap, False, False, _inside)
NAMESPACES = Level("namespaces", f"namespaces: {_CONTAINED}", _namespaces, True, False, _inside)
GUARDED = Level(
    "limits",
    f"{_UNCONTAINED} (sockets and signals are refused); install bubblewrap for more",
    _nothing,
    False,
    True,
    _temporary,
)
UNGUARDED = Level(
    "limits",
    f"{_UNCONTAINED}, use the network and signal its processes; install bubblewrap for more",
    _nothing,
    False,
    True,
    _temporary,
)
