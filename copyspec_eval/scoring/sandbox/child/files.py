"""The files that a program can reach: a file system of its own, or rules for the machine's."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .kernel import check, libc

# <sys/mount.h>, <linux/mount.h>
_NOSUID, _NODEV, _NOEXEC, _RDONLY, _REMOUNT, _BIND, _REC = 2, 4, 8, 1, 32, 4096, 16384
_MNT_DETACH = 2
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_DEVICES = ("null", "zero", "full", "random", "urandom")

# <linux/landlock.h>: the three calls, what a file can be used for, and what all else is
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION, _BENEATH = 1, 1
_EXECUTE, _WRITE, _READ, _READ_FOLDER, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_MAKE_DEVICES = 1 << 6 | 1 << 11
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE
_NUM_USES = (0, 13, 14, 15, 15)
"""Of each version; 16 of later ones. Before the third, that of Linux 6.2, files can be cut that
must not be written: a filter of system calls has to refuse that, too."""

_MACHINE = ("/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu")
"""What libraries read to choose their kernels and their number of threads."""


def build_root(mounts: Sequence[tuple[str, str]], hidden: Sequence[str], folder_bytes: int) -> None:
    """Replace the root by a read-only one of `mounts`, a new /proc, /tmp and /dev/shm, and devices.

    Needs a private mount namespace, and `mount_setattr` (Linux 5.12).
    """
    mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, f"size={folder_bytes},mode=755")
    Path("/tmp/old").mkdir()
    check(libc.pivot_root(b"/tmp", b"/tmp/old"), "pivot_root")
    os.chdir("/")
    for folder in ("/tmp", "/proc", "/dev/shm"):
        Path(folder).mkdir(parents=True)
    mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    for folder in ("/tmp", "/dev/shm"):
        mount("tmpfs", folder, "tmpfs", _NOSUID | _NODEV, f"size={folder_bytes},mode=1777")
    for name in _DEVICES:
        bind(f"/old/dev/{name}", f"/dev/{name}")
    for source, target in mounts:
        bind(f"/old{source}", target)
        make_read_only(target)
    for name in hidden:
        bind("/old/dev/null", f"/proc/{name}")
    # /proc/sys has kernel settings, and the kernel may let root of a user namespace change them.
    make_read_only("/proc")
    check(libc.umount2(b"/old", _MNT_DETACH), "umount2")
    Path("/old").rmdir()
    mount("none", "/", None, _BIND | _REMOUNT | _RDONLY | _NOSUID | _NODEV)


def bind(source: str, target: str) -> None:
    """Mount `source` at `target` too, with all mounts below it."""
    place = Path(target)
    if Path(source).is_dir():
        place.mkdir(parents=True, exist_ok=True)
    elif not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    mount(source, target, None, _BIND | _REC)


def make_read_only(target: str) -> None:
    """Make `target` and all mounts below it read-only."""
    attributes = struct.pack("4Q", _RDONLY | _NOSUID | _NODEV, 0, 0, 0)
    call = _MOUNT_SETATTR, _AT_FDCWD, target.encode(), _AT_RECURSIVE, attributes, len(attributes)
    check(libc.syscall(*call), f"mount_setattr {target}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """mount(2)."""
    kind_bytes = kind.encode() if kind else None
    call = source.encode(), target.encode(), kind_bytes, ctypes.c_ulong(flags), data.encode()
    check(libc.mount(*call), f"mount {target}")


@dataclass(frozen=True)
class Files:
    """Files and folders, each with all in it.

    Attributes:
        readable: programs among them can be run.
        listable: their names can be read.
        writable: they can be read, too.
    """

    readable: Sequence[str]
    listable: Sequence[str]
    writable: Sequence[str]


def restrict(files: Files) -> None:
    """Let this process and those that it starts use no files but these, by Landlock.

    Reading and writing alone: a filter of system calls has to refuse changes of owners,
    permissions and times. TCP, abstract sockets and signals are refused, too, where the kernel can.

    Raises:
        OSError: the kernel has no Landlock.
    """
    version = _version()
    if version == 0:
        raise OSError("this kernel has no Landlock")
    uses = (1 << ([*_NUM_USES, 16][min(version, 5)])) - 1
    rules = _ruleset(version, uses)
    for path in (*files.readable, *_MACHINE):
        _allow(rules, path, _READ | _READ_FOLDER | _EXECUTE)
    for path in files.listable:
        _allow(rules, path, _READ_FOLDER)
    for path in files.writable:
        _allow(rules, path, uses & ~_MAKE_DEVICES)
    for name in _DEVICES:
        _allow(rules, f"/dev/{name}", uses & (_READ | _WRITE | _TRUNCATE))
    _enter(rules)


def keep_apart() -> None:
    """Keep this process from the memory and the environment of all that it did not start.

    What is under rules of Landlock may trace nothing else, whatever the rules are: these forbid to
    make devices. Without effect where the kernel has no Landlock.
    """
    version = _version()
    if version > 0:
        _enter(_ruleset(version, _MAKE_DEVICES))


def _version() -> int:
    return max(0, int(libc.syscall(_CREATE_RULESET, None, 0, _GET_VERSION)))


def _ruleset(version: int, uses: int) -> int:
    """A descriptor of rules that forbid these uses of files, and sockets and signals to others."""
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = struct.pack("3Q", uses, 3, 3)[:size]
    rules = int(libc.syscall(_CREATE_RULESET, attributes, size, 0))
    check(min(rules, 0), "landlock_create_ruleset")
    return rules


def _enter(rules: int) -> None:
    check(libc.syscall(_RESTRICT_SELF, rules, 0), "landlock_restrict_self")
    os.close(rules)


def _allow(rules: int, path: str, uses: int) -> None:
    """Add a rule, unless there is no such file."""
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    allowed = uses if Path(path).is_dir() else uses & _OF_FILES
    rule = struct.pack("=Qi", allowed, beneath)
    check(libc.syscall(_ADD_RULE, rules, _BENEATH, rule, 0), f"landlock_add_rule {path}")
    os.close(beneath)
