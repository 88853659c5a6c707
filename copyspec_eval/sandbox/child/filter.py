"""The filter of system calls: a program can make those that Python needs, and no others."""

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from . import check, libc

MACHINES = {"x86_64": (0xC000003E, 317), "aarch64": (0xC00000B7, 277)}
"""By machine, its number in <linux/audit.h> and that of `seccomp`."""

# Each call with its numbers on these two; "-" where there is none.
_ALLOWED = """
    read 0 63; write 1 64; readv 19 65; writev 20 66; pread64 17 67; pwrite64 18 68; preadv 295 69;
    pwritev 296 70; preadv2 327 286; pwritev2 328 287; sendfile 40 71; copy_file_range 326 285;
    lseek 8 62; open 2 -; openat 257 56; creat 85 -; close 3 57; close_range 436 436; dup 32 23;
    dup2 33 -; dup3 292 24; fcntl 72 25; ioctl 16 29; pipe 22 -; pipe2 293 59; stat 4 -; fstat 5 80;
    lstat 6 -; newfstatat 262 79; statx 332 291; access 21 -; faccessat 269 48; faccessat2 439 439;
    readlink 89 -; readlinkat 267 78; getdents64 217 61; statfs 137 43; fstatfs 138 44;
    getcwd 79 17; chdir 80 49; fchdir 81 50; umask 95 166; mkdir 83 -; mkdirat 258 34; rmdir 84 -;
    unlink 87 -; unlinkat 263 35; rename 82 -; renameat 264 38; renameat2 316 276; link 86 -;
    linkat 265 37; symlink 88 -; symlinkat 266 36; ftruncate 77 46; fallocate 285 47;
    fadvise64 221 223; fsync 74 82; fdatasync 75 83;

    mmap 9 222; munmap 11 215; mremap 25 216; mprotect 10 226; madvise 28 233; msync 26 227;
    brk 12 214;

    poll 7 -; ppoll 271 73; select 23 -; pselect6 270 72; epoll_create1 291 20; epoll_ctl 233 21;
    epoll_wait 232 -; epoll_pwait 281 22; eventfd2 290 19; futex 202 98; nanosleep 35 101;
    clock_nanosleep 230 115; pause 34 -; alarm 37 -; getitimer 36 102; setitimer 38 103;
    restart_syscall 219 128; sched_yield 24 124;

    socketpair 53 199; sendto 44 206; recvfrom 45 207; sendmsg 46 211; recvmsg 47 212;
    shutdown 48 210; getsockname 51 204; getpeername 52 205; getsockopt 55 209;

    fork 57 -; vfork 58 -; clone 56 220; execve 59 221; exit 60 93; exit_group 231 94; wait4 61 260;
    waitid 247 95; prctl 157 167; arch_prctl 158 -; set_tid_address 218 96; set_robust_list 273 99;
    rseq 334 293; prlimit64 302 261; rt_sigaction 13 134; rt_sigprocmask 14 135;
    rt_sigreturn 15 139; rt_sigpending 127 136; rt_sigtimedwait 128 137; rt_sigsuspend 130 133;
    sigaltstack 131 132;

    getpid 39 172; getppid 110 173; gettid 186 178; getuid 102 174; geteuid 107 175; getgid 104 176;
    getegid 108 177; getresuid 118 148; getresgid 120 150; getgroups 115 158; getpgid 121 155;
    getpgrp 111 -; getsid 124 156; getrusage 98 165; times 100 153; sysinfo 99 179; uname 63 160;
    getcpu 309 168; sched_getaffinity 204 123; time 201 -; gettimeofday 96 169;
    clock_gettime 228 113; clock_getres 229 114; getrandom 318 278"""
_ALLOWED_ALONE = "; kill 62 129; tkill 200 130; tgkill 234 131; setpgid 109 154; setsid 112 157"
"""Calls that signal other processes or leave the process group: allowed where there are none."""

_FORKS = ("fork", "vfork", "clone")
_ALL = 0xFFFFFFFF
_OPENED = (0, 1, 2, 0o1001, 0o1002)
"""Of O_ACCMODE and O_TRUNC: a file that is only read is not truncated, which Landlock does not see
before Linux 6.2."""
_TESTS: dict[str, Sequence[tuple[int, int, Sequence[int]]]] = {
    # F_DUPFD to F_SETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ: no locks, leases, signals and hints
    "fcntl": [(1, _ALL, (0, 1, 2, 3, 4, 1030, 1032))],
    # FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
    "ioctl": [(1, _ALL, (0x541B, 0x5421, 0x5450, 0x5451))],
    # PR_GET_DUMPABLE, PR_SET_DUMPABLE, PR_SET_NAME, PR_GET_NAME
    "prctl": [(0, _ALL, (3, 4, 15, 16))],
    # MADV_NORMAL to MADV_DONTNEED, FREE, HUGEPAGE, NOHUGEPAGE and guards: no merging with others
    "madvise": [(2, _ALL, (0, 1, 2, 3, 4, 8, 14, 15, 102, 103))],
    # limits of this process alone
    "prlimit64": [(0, _ALL, (0,))],
    # AF_UNIX and SOCK_STREAM: others can have other peers than each other
    "socketpair": [(0, _ALL, (1,)), (1, 0xF, (1,))],
    # CLONE_NEW…: no namespaces
    "clone": [(0, 0x7E020000, (0,))],
    "open": [(1, 0o1003, _OPENED)],
    "openat": [(2, 0o1003, _OPENED)],
}
"""An argument, counted from 0, a mask of its lower half, and the values that are allowed there."""

_FIRST_OPTIONAL = 424
"""From here on all machines share their numbers, and libraries do without a call that is missing:
`clone3` and `openat2`, whose flags no filter can read, and all that later kernels may add."""

# <linux/seccomp.h>: a filter's answers; the flag of a listener
_KILL, _ASK, _ALLOW = 0x80000000, 0x7FC00000, 0x7FFF0000
_REFUSE, _MISSING = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_MODE_FILTER, _NEW_LISTENER = 1, 8
# <linux/filter.h>: load; keep bits; jump if equal, at least; return
_LOAD, _KEEP, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06

Line = tuple[int, int, int, int]
"""`struct sock_filter`: code, lines to skip if true and if false, operand."""


def guard(shared: bool) -> list[int]:
    """Make every fork wait for the watcher; refuse all calls that are not allowed.

    With `shared`, signals are refused as well: elsewhere there is nothing else to reach. Returns
    the descriptor of the listener; empty if the kernel has none.
    """
    machine = os.uname().machine
    if machine not in MACHINES:
        raise OSError(f"no filter of system calls for {machine}")
    for flags in (_NEW_LISTENER, 0):
        lines = rules(machine, shared, asks=flags == _NEW_LISTENER)
        code = b"".join(struct.pack("HBBI", *line) for line in lines)
        buffer = ctypes.create_string_buffer(code)
        program = struct.pack("HP", len(lines), ctypes.addressof(buffer))
        listener = int(libc.syscall(MACHINES[machine][1], _MODE_FILTER, flags, program))
        if listener >= 0:
            return [listener] if flags else []
    check(listener, "seccomp")
    return []


def rules(machine: str, shared: bool, asks: bool) -> list[Line]:
    """The filter: another architecture is killed; if it `asks`, a fork waits for a listener."""
    lines = [
        *((_LOAD, 0, 0, 4), (_EQUAL, 1, 0, MACHINES[machine][0]), (_RETURN, 0, 0, _KILL)),
        (_LOAD, 0, 0, 0),
    ]
    for name, number in numbers(machine, shared).items():
        answer = _ASK if asks and name in _FORKS else _ALLOW
        block = [line for test in _TESTS.get(name, ()) for line in _tested(*test)]
        block.append((_RETURN, 0, 0, answer))
        lines += [(_EQUAL, 0, len(block), number), *block]
    missing = [(_AT_LEAST, 0, 1, _FIRST_OPTIONAL), (_RETURN, 0, 0, _MISSING)]
    return [*lines, *missing, (_RETURN, 0, 0, _REFUSE)]


def numbers(machine: str, shared: bool) -> dict[str, int]:
    """The calls that are allowed, by name."""
    column = [*MACHINES].index(machine)
    rows = map(str.split, (_ALLOWED + _ALLOWED_ALONE * (not shared)).split(";"))
    return {name: int(columns[column]) for name, *columns in rows if columns[column] != "-"}


def _tested(argument: int, mask: int, allowed: Sequence[int]) -> list[Line]:
    """Refuse the call unless these bits of an argument have one of the allowed values."""
    return [
        *((_LOAD, 0, 0, 16 + 8 * argument), (_KEEP, 0, 0, mask)),
        *((_EQUAL, len(allowed) - index, 0, value) for index, value in enumerate(allowed)),
        (_RETURN, 0, 0, _REFUSE),
    ]
