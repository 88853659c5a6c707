"""A filter of system calls: what every program is refused, at every level of containment."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from .kernel import libc

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # <linux/audit.h>

# Each call with its numbers on these two; "-" where there is none.
_SIGNALLING = """
    kill 62 129; tkill 200 130; tgkill 234 131; rt_sigqueueinfo 129 138; rt_tgsigqueueinfo 297 240;
    pidfd_send_signal 424 424; setpgid 109 154; setsid 112 157
"""
"""What signals other processes or leaves the process group."""
_REFUSED = """
    ptrace 101 117; process_vm_readv 310 270; process_vm_writev 311 271; pidfd_getfd 438 438;
    process_madvise 440 440; kcmp 312 272; migrate_pages 256 238; move_pages 279 239;
    setpriority 141 140; ioprio_set 251 30; sched_setaffinity 203 122; sched_setattr 314 274;
    sched_setparam 142 118; sched_setscheduler 144 119;
    socket 41 198; bind 49 200; connect 42 203; listen 50 201; accept 43 202; accept4 288 242;
    shmget 29 194; msgget 68 186; semget 64 190; mq_open 240 180; memfd_create 319 279;
    memfd_secret 447 447; io_setup 206 0; io_uring_setup 425 425; io_uring_enter 426 426;
    io_uring_register 427 427; add_key 248 217; request_key 249 218; keyctl 250 219;
    unshare 272 97; setns 308 268; mount 165 40; umount2 166 39; pivot_root 155 41; chroot 161 51;
    mount_setattr 442 442; open_tree 428 428; move_mount 429 429; fsopen 430 430; fsconfig 431 431;
    fsmount 432 432; fspick 433 433; open_by_handle_at 304 265; name_to_handle_at 303 264;
    bpf 321 280; perf_event_open 298 241; userfaultfd 323 282; syslog 103 116;
    inotify_init 253 -; inotify_init1 294 26; fanotify_init 300 262; flock 73 32;
    chmod 90 -; fchmod 91 52; fchmodat 268 53; fchmodat2 452 452; chown 92 -; fchown 93 55;
    lchown 94 -; fchownat 260 54; utime 132 -; utimes 235 -; futimesat 261 -; utimensat 280 88;
    setxattr 188 5; lsetxattr 189 6; fsetxattr 190 7; removexattr 197 14; lremovexattr 198 15;
    fremovexattr 199 16; setxattrat 463 463; removexattrat 466 466; truncate 76 45
"""
"""What no program needs: it reaches into other processes, the network, other namespaces, memory
that no limit counts, or changes of files that are neither reading nor writing."""
_OTHERS = """
    fcntl 72 25; ioctl 16 29; prlimit64 302 261; socketpair 53 199; clone 56 220; fork 57 -;
    vfork 58 -; clone3 435 435; seccomp 317 277; prctl 157 167; open 2 -; openat 257 56;
    openat2 437 437
"""

_ANY = 0xFFFFFFFF
_NEW_NAMESPACE = 0x7E020000
_DATAGRAM = 2
_RANGES: dict[str, tuple[int, Sequence[tuple[int, int]]]] = {
    # F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY: signals to any process, and who opens
    # a file
    "fcntl": (1, [(8, 8), (10, 10), (15, 15), (1024, 1024), (1026, 1026)]),
    # those of sockets; TIOCSTI and TIOCLINUX: input of a terminal; FS_IOC_SETFLAGS, FSSETXATTR
    "ioctl": (
        1,
        [
            (0x8900, 0x89FF),
            *((0x5412, 0x5412), (0x541C, 0x541C)),
            *((0x40086602, 0x40086602), (0x401C5820, 0x401C5820)),
        ],
    ),
    # limits of another process than this
    "prlimit64": (0, [(1, _ANY)]),
    # PR_SET_MEMORY_MERGE
    "prctl": (0, [(67, 67)]),
}
"""Calls that are refused where an argument, counted from 0, is in one of these ranges."""
_FLAGS = {"clone": (0, _NEW_NAMESPACE), "socketpair": (1, _DATAGRAM)}
"""Calls that are refused where an argument has one of these bits. A socket of datagrams, unlike one
of a stream, could be used for other peers than its own."""
_OPENING = {"open": 1, "openat": 2}
"""Calls and the argument that says how a file is opened: not to be cut although it is only read,
which Landlock does not see before Linux 6.2."""
_HOW, _CUT = 0o1003, 0o1000  # <fcntl.h>: O_ACCMODE and O_TRUNC

# <linux/seccomp.h>: a filter's answers; the flag of a listener
_KILL, _ASK, _ALLOW = 0x80000000, 0x7FC00000, 0x7FFF0000
_REFUSE, _MISSING = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_MODE_FILTER, _NEW_LISTENER = 1, 8
# <linux/filter.h>: load; keep bits; jump if equal, greater, at least, a bit is set; return
_LOAD, _KEEP, _EQUAL, _GREATER, _AT_LEAST, _HAS, _GIVE = 0x20, 0x54, 0x15, 0x25, 0x35, 0x45, 0x06

_JOIN_SESSION_KEYRING = 1  # <linux/keyctl.h>

_Line = tuple[int, int, int, int]


def guard(shared: bool) -> list[int]:
    """Make every fork wait for the watcher; refuse what reaches outside.

    Args:
        shared: refuse signals, too: elsewhere there is nothing else to reach.

    Returns:
        The descriptor of the listener; empty if the kernel has none.
    """
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        return []
    others, refused = _numbers(_OTHERS, machine), _numbers(_REFUSED, machine)
    libc.syscall(refused["keyctl"], _JOIN_SESSION_KEYRING, None)
    if shared:
        refused |= _numbers(_SIGNALLING, machine)
    for may_ask in (True, False):
        forking = _ASK if may_ask else _ALLOW
        answers = dict.fromkeys(refused.values(), _REFUSE)
        answers |= {others[name]: forking for name in ("fork", "vfork") if name in others}
        # The C library and others fall back to clone and openat, whose flags can be read here.
        answers |= {others[name]: _MISSING for name in ("clone3", "openat2")}
        lines = [_line for call, answer in answers.items() for _line in _always(call, answer)]
        for name, (argument, ranges) in _RANGES.items():
            lines += _in_ranges(others[name], argument, ranges)
        for name, (argument, mask) in _FLAGS.items():
            otherwise = forking if name == "clone" else _ALLOW
            lines += _with_bits(others[name], argument, mask, otherwise)
        for name, argument in _OPENING.items():
            if name in others:
                lines += _with_value(others[name], argument, _HOW, _CUT)
        flags = _NEW_LISTENER if may_ask else 0
        listener = _install(_ARCHITECTURES[machine], others["seccomp"], lines, flags)
        if listener >= 0:
            return [listener] if may_ask else []
    return []


def _numbers(table: str, machine: str) -> dict[str, int]:
    """The calls of a table and their numbers on a machine that has them."""
    column = [*_ARCHITECTURES].index(machine)
    rows = [row.split() for row in table.split(";")]
    return {name: int(of[column]) for name, *of in rows if of[column] != "-"}


def _always(call: int, answer: int) -> list[_Line]:
    return [(_EQUAL, 0, 1, call), (_GIVE, 0, 0, answer)]


def _in_ranges(call: int, argument: int, ranges: Sequence[tuple[int, int]]) -> list[_Line]:
    """Refuse a call if the lower half of an argument is in one of the ranges, ends included."""
    lines = [_argument(argument)]
    for left, (lowest, highest) in zip(range(len(ranges) - 1, -1, -1), ranges, strict=True):
        lines += [(_AT_LEAST, 0, 1, lowest), (_GREATER, 0, 2 * left + 1, highest)]
    return _of_call(call, [*lines, (_GIVE, 0, 0, _ALLOW), (_GIVE, 0, 0, _REFUSE)])


def _with_bits(call: int, argument: int, mask: int, otherwise: int) -> list[_Line]:
    """Refuse a call if an argument has one of the bits of `mask`."""
    lines = [_argument(argument), (_HAS, 1, 0, mask)]
    return _of_call(call, [*lines, (_GIVE, 0, 0, otherwise), (_GIVE, 0, 0, _REFUSE)])


def _with_value(call: int, argument: int, mask: int, value: int) -> list[_Line]:
    """Refuse a call if the bits of `mask` in an argument are `value`."""
    lines = [_argument(argument), (_KEEP, 0, 0, mask), (_EQUAL, 1, 0, value)]
    return _of_call(call, [*lines, (_GIVE, 0, 0, _ALLOW), (_GIVE, 0, 0, _REFUSE)])


def _argument(number: int) -> _Line:
    return (_LOAD, 0, 0, 16 + 8 * number)


def _of_call(call: int, lines: Sequence[_Line]) -> list[_Line]:
    """Lines that are for one call alone, and leave its number loaded for those that follow."""
    return [(_EQUAL, 0, len(lines), call), *lines]


def _install(architecture: int, seccomp: int, lines: Sequence[_Line], flags: int) -> int:
    """Install a filter: another architecture is killed, calls of the x32 ABI are refused.

    `struct sock_filter {u16 code; u8 jt, jf; u32 k}`.
    """
    program = [
        *((_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_GIVE, 0, 0, _KILL)),
        *((_LOAD, 0, 0, 0), (_AT_LEAST, 0, 1, 0x40000000), (_GIVE, 0, 0, _REFUSE)),
        *lines,
        (_GIVE, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code)
    described = struct.pack("HP", len(program), ctypes.addressof(buffer))
    return int(libc.syscall(seccomp, _MODE_FILTER, flags, described))
