"""What Landlock lets a program do with the machine's files."""

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from . import LINUX, check, libc

_DEVICES = ("null", "zero", "full", "random", "urandom")

# <linux/landlock.h>
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION, _BENEATH = 1, 1
_EXECUTE, _WRITE, _READ, _READ_FOLDER, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_MAKE_DEVICES = 1 << 6 | 1 << 11
_FILE_USES = _EXECUTE | _WRITE | _READ | _TRUNCATE
_NUM_USES = (0, 13, 14, 15, 15)
"""By version; 16 in later ones. Before the third, that of Linux 6.2, files can be truncated that
must not be written: the filter of system calls refuses that."""

_MACHINE = ("/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu")
"""What libraries read to choose their kernels and their number of threads."""


def restrict(readable: Sequence[str], listable: Sequence[str], writable: Sequence[str]) -> None:
    """Let this process and those that it starts use no files but these, each with all below it.

    Reading and writing alone: the filter of system calls refuses changes of owners, permissions
    and times. TCP, abstract sockets and signals are refused, too, where the kernel can. What is
    readable can be run, what is writable can be read; of listable folders names alone can be read.
    """
    version = _version()
    if version == 0:
        raise OSError("this kernel has no Landlock")
    uses = (1 << ([*_NUM_USES, 16][min(version, 5)])) - 1
    rules = _ruleset(version, uses)
    for path in (*readable, *_MACHINE):
        _allow(rules, path, _READ | _READ_FOLDER | _EXECUTE)
    for path in listable:
        _allow(rules, path, _READ_FOLDER)
    for path in writable:
        _allow(rules, path, uses & ~_MAKE_DEVICES)
    for name in _DEVICES:
        _allow(rules, f"/dev/{name}", uses & (_READ | _WRITE | _TRUNCATE))
    _enter(rules)


def forbid_tracing() -> None:
    """Keep this process from tracing others, as any Landlock rules do; these forbid devices."""
    version = _version()
    if version > 0:
        _enter(_ruleset(version, _MAKE_DEVICES))


def _version() -> int:
    """0 where there is no Landlock."""
    return max(0, int(libc.syscall(_CREATE_RULESET, None, 0, _GET_VERSION))) if LINUX else 0


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
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    allowed = uses if Path(path).is_dir() else uses & _FILE_USES
    rule = struct.pack("=Qi", allowed, beneath)
    check(libc.syscall(_ADD_RULE, rules, _BENEATH, rule, 0), f"landlock_add_rule {path}")
    os.close(beneath)
