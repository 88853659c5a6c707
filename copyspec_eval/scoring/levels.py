"""Ways to contain a program, from the best to one that contains little but works anywhere."""

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
"""A path outside, and where it is inside."""

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib64"),
    *("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"),
)


@dataclass(frozen=True, slots=True)
class Level:
    """A way to contain a program.

    Attributes:
        name: as `levels` lists it.
        says: what is contained and what is not, one sentence.
        prefix: the command that puts another inside, from the room for files in bytes and
            `(source, target)` mounts.
        builds_root: whether `sandbox_child` has to mount these itself.
        shared: whether the processes and the network are the machine's.
        folder: makes the folder in which a program starts, and removes it.
    """

    name: str
    says: str
    prefix: Callable[[int, Sequence[Mount]], list[str]]
    builds_root: bool
    shared: bool
    folder: Callable[[], AbstractContextManager[str]]


def mounts_of(readable: Sequence[Path]) -> list[Mount]:
    """`(source, target)` of what can be read; links lead to places that are there, too.

    That is the system's programs and libraries, Python's own, and `readable`.
    """
    wanted = [*_SYSTEM, sys.base_prefix, str(CHILD), *map(str, readable)]
    paths = {os.path.abspath(path) for path in wanted if os.path.exists(path)}  # noqa: PTH100, PTH110
    targets = paths | {os.path.realpath(path) for path in paths}
    return [(os.path.realpath(target), target) for target in sorted(targets)]


@contextmanager
def _inside() -> Iterator[str]:
    """A folder of a file system that ends with the program, made there by `sandbox_child`.

    Not /tmp itself, where this package may be shown to the program.
    """
    yield "/tmp/program"


@contextmanager
def _temporary() -> Iterator[str]:
    """A folder of this machine; the commands cope with any depth and with what is unreadable."""
    folder = tempfile.mkdtemp(prefix="copyspec-")
    try:
        yield folder
    finally:
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, folder], check=False, capture_output=True)


def _bubblewrap(room: int, mounts: Sequence[Mount]) -> list[str]:
    """A read-only /proc: to the kernel, root of a user namespace may still be root of /proc/sys."""
    folder = ("--size", str(room), "--perms", "1777", "--tmpfs")
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


def _namespaces(room: int, mounts: Sequence[Mount]) -> list[str]:
    own = ("user", "map-root-user", "pid", "net", "mount", "ipc", "uts", "fork", "kill-child")
    return ["unshare", *(f"--{name}" for name in own), "--"]


def _nothing(room: int, mounts: Sequence[Mount]) -> list[str]:
    return []


_CONTAINED = (
    "no network, no process but their own, no file but the system's and Python's (read-only), "
    "limits of time, memory, output and processes"
)
_UNCONTAINED = (
    "limits of time, memory, output and processes only; files are NOT contained: a program can "
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
