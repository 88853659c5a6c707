"""The filter of system calls: nothing passes but what is on its list, on either machine."""

import errno
import platform
import re
import textwrap
from pathlib import Path

import pytest
from sandbox_levels import EVERY_LEVEL

from copyspec_eval.sandbox import programs
from copyspec_eval.sandbox.child.filter import MACHINES, numbers, rules
from copyspec_eval.sandbox.programs import run_program

# <linux/seccomp.h> and <linux/filter.h>
KILL, ASK, ALLOW = 0x80000000, 0x7FC00000, 0x7FFF0000
REFUSE, MISSING = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
LOAD, KEEP, EQUAL, AT_LEAST, RETURN = 0x20, 0x54, 0x15, 0x35, 0x06

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
LATER = {"statmount": 457, "listmount": 458, "setxattrat": 463, "file_getattr": 468}
LATER |= {"file_setattr": 469, "the next": 470, "a later one": 999}
"""Calls that a machine's headers may not have yet; their numbers are those of all machines."""

PAST_FILTERS = {335, 336}
"""uretprobe and uprobe of x86_64: no filter sees them, and the kernel ends whoever calls them."""

EVERY_MACHINE = pytest.mark.parametrize("machine", MACHINES)


def kernel_table(machine: str) -> dict[str, int]:
    """The number of each call in the headers of the kernel."""
    if not HEADERS[machine].exists():
        pytest.skip(f"NOT TESTED: no {HEADERS[machine]}; install linux-libc-dev")
    actual = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[machine].read_text())
    table = {name: int(number) for name, number in actual}
    return {"newfstatat": table.get("fstatat", -1)} | table | LATER


def answer(machine, number, *arguments, shared=True, audit=None):
    """What the kernel is told of a call, by running the filter on its `struct seccomp_data`."""
    words = {0: number, 4: audit or MACHINES[machine][0]}
    for index, argument in enumerate((*arguments, *[0] * 6)[:6]):
        words[16 + 8 * index] = argument & 0xFFFFFFFF
    lines = iter(rules(machine, shared, asks=True))
    loaded = 0
    for code, if_true, if_false, operand in lines:
        if code == RETURN:
            return operand
        if code == LOAD:
            loaded = words[operand]
        elif code == KEEP:
            loaded &= operand
        else:
            holds = {EQUAL: loaded == operand, AT_LEAST: loaded >= operand}[code]
            for _ in range(if_true if holds else if_false):
                next(lines)
    raise AssertionError("a filter without an answer")


@EVERY_MACHINE
@pytest.mark.parametrize("shared", [True, False])
def test_every_number_that_is_not_listed_is_refused(machine, shared):
    assert answer(machine, 1, audit=0x40000003) == KILL  # AUDIT_ARCH_I386
    listed = set(numbers(machine, shared).values())
    upper = range(0x40000000, 0x40000000 + 600)  # the x32 ABI
    for number in {*range(1024), *upper, 2**31, 2**32 - 1} - listed:
        expected = REFUSE if number < 424 else MISSING
        assert answer(machine, number, shared=shared) == expected, number


REFUSED = """
    shmget shmat shmctl shmdt msgget msgsnd msgrcv msgctl semget semop semctl semtimedop
    mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr userfaultfd flock
    ptrace process_vm_readv process_vm_writev kcmp socket connect bind listen accept accept4
    memfd_create io_setup io_uring_setup add_key request_key keyctl unshare setns mount umount2
    pivot_root chroot bpf perf_event_open syslog fchmod fchmodat fchown fchownat utimensat setxattr
    removexattr truncate mknodat kill tkill tgkill setpgid setsid personality setuid
    sched_setaffinity setpriority seccomp reboot swapon init_module acct quotactl clone3 openat2
    pidfd_open pidfd_getfd pidfd_send_signal open_tree move_mount fsopen mount_setattr
"""


@EVERY_MACHINE
def test_the_numbers_are_the_kernels_and_what_reaches_others_is_refused(machine):
    table = kernel_table(machine)
    allowed = numbers(machine, shared=False)
    assert allowed == {name: table[name] for name in allowed}
    for name in (*REFUSED.split(), *LATER):
        assert answer(machine, table[name]) in (REFUSE, MISSING), name


# By call, what its arguments may be and what not; one such list in a row.
ARGUMENTS = [
    ("fcntl", ALLOW, [(3, 4)]),  # F_SETFL
    ("fcntl", REFUSE, [(3, 6), (3, 7), (3, 37)]),  # F_SETLK, F_SETLKW, F_OFD_SETLK
    ("fcntl", REFUSE, [(3, 1024), (3, 1036), (3, 1 << 32 | 6)]),  # F_SETLEASE, F_SET_RW_HINT
    ("ioctl", ALLOW, [(3, 0x5421)]),  # FIONBIO
    ("ioctl", REFUSE, [(3, 0x5412), (3, 0xAA00)]),  # TIOCSTI, USERFAULTFD_IOC_NEW
    ("ioctl", REFUSE, [(3, 0x40086602)]),  # FS_IOC_SETFLAGS
    ("madvise", ALLOW, [(0, 4096, 4)]),  # MADV_DONTNEED
    ("madvise", REFUSE, [(0, 4096, 12)]),  # MADV_MERGEABLE
    ("prctl", ALLOW, [(15,)]),  # PR_SET_NAME
    ("prctl", REFUSE, [(35,)]),  # PR_SET_MM
    ("prlimit64", ALLOW, [(0, 7)]),
    ("prlimit64", REFUSE, [(1, 7)]),
    ("socketpair", ALLOW, [(1, 1 | 0o2004000)]),  # SOCK_CLOEXEC and SOCK_NONBLOCK
    ("socketpair", REFUSE, [(1, 2), (1, 5), (30, 1)]),  # SOCK_DGRAM, SOCK_SEQPACKET, AF_TIPC
    ("clone", ASK, [(0x3D0F00,), (17,)]),  # a thread, a process
    ("clone", REFUSE, [(0x10000000 | 17,), (0x20000 | 17,)]),  # CLONE_NEWUSER, CLONE_NEWNS
    ("openat", ALLOW, [(3, 0, 0o2000000), (3, 0, 0o1001)]),
    ("openat", REFUSE, [(3, 0, 0o1000)]),  # O_RDONLY and O_TRUNC
]


@EVERY_MACHINE
@pytest.mark.parametrize(("name", "expected", "calls"), ARGUMENTS)
def test_arguments_are_tested(machine, name, expected, calls):
    number = numbers(machine, shared=True)[name]
    answers = {arguments: answer(machine, number, *arguments) for arguments in calls}
    assert answers == dict.fromkeys(calls, expected)


@EVERY_LEVEL
def test_the_kernel_answers_no_other_call(level, monkeypatch):
    if platform.machine() not in MACHINES:
        pytest.skip("NOT TESTED: no filter for this machine, and no level works")
    monkeypatch.setenv(programs.VARIABLE, level.name)
    listed = set(numbers(platform.machine(), level.shared).values())
    source = f"""
    import ctypes, errno
    libc = ctypes.CDLL(None, use_errno=True)
    answered = []
    for number in set(range(600)) - {listed | PAST_FILTERS}:
        ctypes.set_errno(0)
        libc.syscall(number, -1, -1, -1, -1, -1, -1)
        if ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
            answered.append(number)
    print(answered)
    """
    assert run_program(textwrap.dedent(source)).stdout == "[]\n"
