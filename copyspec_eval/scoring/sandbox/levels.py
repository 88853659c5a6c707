"""Ways to contain a program, from the strictest to one that works on every machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

CHILD = Path(__file__).with_name("child")

Mount = tuple[str, str]
"""A path outside the sandbox, and its path inside."""

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib64"),
    *("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"),
)


_OF_ROOT = (
    *("kcore", "kallsyms", "keys", "iomem", "ioports", "kpageflags", "kpagecount", "kpagecgroup"),
    *("slabinfo", "vmallocinfo", "timer_list", "pagetypeinfo", "sched_debug"),
)
"""Files of /proc that tell of the whole machine. Root without privileges may read some of them."""


@dataclass(frozen=True, slots=True)
class Level:
    """A way to contain a program.

    Attributes:
        name: short name.
        description: what is contained and what is not, one sentence.
        prefix: makes the command that runs another inside, from the space for files in bytes and
            the mounts.
        builds_root: whether `child` has to make the mounts itself.
        keeps_files: whether the machine's files are kept by Landlock, as there are no mounts.
        shared: whether the program shares processes and network with the machine.
        folder: makes the folder in which a program starts, and removes it.
    """

    name: str
    description: str
    prefix: Callable[[int, Sequence[Mount]], list[str]]
    builds_root: bool
    keeps_files: bool
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


def hidden() -> list[str]:
    """Names of files in /proc that are covered where a program has a /proc of its own."""
    return [name for name in _OF_ROOT if Path("/proc", name).exists()]


@contextmanager
def _inside() -> Iterator[str]:
    """A folder in the program's own file system, made there by `child`.

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
    covers = [w for name in hidden() for w in ("--ro-bind", "/dev/null", f"/proc/{name}")]
    folder = ("--size", str(num_bytes), "--perms", "1777", "--tmpfs")
    binds = [word for source, target in mounts for word in ("--ro-bind", source, target)]
    return [
        *("bwrap", "--unshare-all", "--die-with-parent", "--as-pid-1", "--cap-drop", "ALL"),
        *(
            "--proc",
            "/proc",
            *covers,
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


_LIMITS = "limits on time, memory, output and processes"
_CONTAINED = (
    "no network, no other processes, no files but the system's and Python's (read-only), " + _LIMITS
)
_KEPT = (
    "no network, nothing sent to other processes, no files but the system's and Python's "
    f"(read-only), {_LIMITS}; names and sizes of files can be seen, and a program's own files are "
    "limited one by one"
)
_UNCONTAINED = (
    f"{_LIMITS} only; files are NOT contained: a program can read and change what this user can"
)
BUBBLEWRAP = Level(
    "bubblewrap",
    f"bubblewrap: {_CONTAINED}",
    _bubblewrap,
    builds_root=False,
    keeps_files=False,
    shared=False,
    folder=_inside,
)
NAMESPACES = Level(
    "namespaces",
    f"namespaces: {_CONTAINED}",
    _namespaces,
    builds_root=True,
    keeps_files=False,
    shared=False,
    folder=_inside,
)
LANDLOCK = Level(
    "landlock",
    f"Landlock: {_KEPT}",
    _nothing,
    builds_root=False,
    keeps_files=True,
    shared=True,
    folder=_temporary,
)
GUARDED = Level(
    "limits",
    f"{_UNCONTAINED} (sockets and signals are refused)",
    _nothing,
    builds_root=False,
    keeps_files=False,
    shared=True,
    folder=_temporary,
)
UNGUARDED = replace(
    GUARDED, description=f"{_UNCONTAINED}, use the network and signal its processes"
)
