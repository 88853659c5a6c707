"""Ways to contain a program, the strictest first, and what each lets it read."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CHILD = Path(__file__).with_name("child")

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib64"),
    *("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"),
)
_HIDDEN = (
    *("kcore", "kallsyms", "keys", "iomem", "ioports", "kpageflags", "kpagecount", "kpagecgroup"),
    *("slabinfo", "vmallocinfo", "timer_list", "pagetypeinfo", "sched_debug"),
)
"""Files of /proc that describe the whole machine; root without privileges may read some of them."""


@dataclass(frozen=True, slots=True)
class Level:
    """A way to contain a program, and what is contained and what is not, one sentence.

    Unless the program shares files, processes and network with the machine, bubblewrap gives it
    others. Landlock restricts it to the files that it needs.
    """

    name: str
    description: str
    shared: bool
    landlock: bool = False


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
    landlock=True,
)
LIMITS = Level(
    "limits",
    f"{_LIMITS} only; files are NOT contained: a program can read and change what this user can "
    "(and use the network, where the system is not Linux)",
    shared=True,
)
LEVELS = (BUBBLEWRAP, LANDLOCK, LIMITS)


def readable_paths(readable: Sequence[Path]) -> list[str]:
    """The system's programs and libraries, Python, and `readable`; where they are links, the
    targets too."""
    wanted = [*_SYSTEM, sys.base_prefix, str(CHILD), *map(str, readable)]
    paths = {os.path.abspath(path) for path in wanted if os.path.exists(path)}  # noqa: PTH100, PTH110
    return sorted(paths | {os.path.realpath(path) for path in paths})


def bubblewrap(readable: Sequence[str], num_bytes: int) -> list[str]:
    """Words in front of a command that run it in a file system of these paths.

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
