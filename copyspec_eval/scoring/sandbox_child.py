"""Runs one untrusted program, and leaves nothing of it running; `sandbox` starts this file.

    python -I -S sandbox_child.py SETTINGS PROGRAM [ARGUMENT…]

SETTINGS is a JSON object of the arguments of `main`. This process limits the program, waits for it,
counts its processes, and writes two lines to the socket `control`: `group N`, its process group,
and then `exit N`, `signal N` or `processes`. When the other end of that socket is closed,
everything is killed. As process 1 of a PID namespace it cannot be killed from inside, and the
kernel ends the namespace with it. Without a namespace the program can neither leave its process
group nor send signals, and the group is killed in one call: a fork bomb would outrun killing
process by process.

Each fork waits for permission from this process (a seccomp listener, Linux 5.5), since a fork bomb
would outrun polling, which is used only where the kernel has no listener.

Standard library only, and no import of this package: it starts in milliseconds for every program.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TICK_SECONDS = 0.02
"""Interval at which the processes are counted."""

_AT_A_TIME = 1000

LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True)

# <sys/mount.h>, <linux/mount.h>
_NOSUID, _NODEV, _NOEXEC, _RDONLY, _REMOUNT, _BIND, _REC = 2, 4, 8, 1, 32, 4096, 16384
_MNT_DETACH = 2
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_DEVICES = ("null", "zero", "full", "random", "urandom")

# <sys/prctl.h>
_SET_DUMPABLE, _CAPBSET_DROP, _SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVS = 4, 24, 36, 38

# <fcntl.h>, <asm/sockios.h>: what makes the kernel send signals to a process of choice
_SETTING_OWNERS = {"fcntl": (8, 10, 15), "ioctl": (0x8901, 0x8902)}

# <linux/seccomp.h>: a filter's answers; the flag and the two calls of a listener
_KILL, _REFUSE, _ASK, _ALLOW = 0x80000000, 0x00050000, 0x7FC00000, 0x7FFF0000
_MODE_FILTER, _NEW_LISTENER = 1, 8
_RECEIVE, _RECEIVE_BYTES, _SEND, _CONTINUE = 0xC0502100, 80, 0xC0182101, 1


@dataclass(frozen=True)
class Calls:
    """An architecture of <linux/audit.h> and its system calls.

    Attributes:
        reaching: those that signal other processes or leave the process group: kill, tkill, tgkill,
            rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal, setpgid, setsid.
        refused: those that no program needs, and that reach into other processes, the network, or
            memory that no limit counts: ptrace, process_vm_readv, process_vm_writev, socket (not
            socketpair), add_key, request_key, keyctl, shmget, msgget, semget, memfd_create;
            pidfd_getfd and the three of io_uring.
        fcntl, ioctl, prlimit64: those of which some arguments are refused.
        forking: clone, fork, vfork. The C library falls back to clone where clone3 is missing.
    """

    architecture: int
    seccomp: int
    reaching: tuple[int, ...]
    refused: tuple[int, ...]
    fcntl: int
    ioctl: int
    prlimit64: int
    forking: tuple[int, ...]
    clone3: int = 435


_CALLS = {
    "x86_64": Calls(
        0xC000003E,
        317,
        reaching=(62, 200, 234, 129, 297, 424, 109, 112),
        refused=(101, 310, 311, 41, 248, 249, 250, 29, 68, 64, 319, 438, 425, 426, 427),
        fcntl=72,
        ioctl=16,
        prlimit64=302,
        forking=(56, 57, 58),
    ),
    "aarch64": Calls(
        0xC00000B7,
        277,
        reaching=(129, 130, 131, 138, 240, 424, 154, 157),
        refused=(117, 270, 271, 198, 217, 218, 219, 194, 186, 190, 279, 438, 425, 426, 427),
        fcntl=25,
        ioctl=29,
        prlimit64=261,
        forking=(220,),
    ),
}


def main(
    program: Sequence[str],
    *,
    control: int,
    folder: str,
    mounts: Sequence[tuple[str, str]] | None,
    shared: bool,
    num_processes: int,
    folder_bytes: int,
    limits: dict[str, int],
) -> None:
    """Run `program` and report; does not return.

    Args:
        program: a path and its arguments.
        control: descriptor of the socket.
        folder: where the program starts.
        mounts: `(source, target)` paths that can be read, to build a file system from; None if it
            is built already.
        shared: whether the program shares processes and network with the machine.
        num_processes: limit on processes at a time.
        folder_bytes: size of each writable file system that is built.
        limits: resource limits by name, `{"RLIMIT_CPU": 8}`.
    """
    os.set_inheritable(control, False)
    if mounts is not None:
        build_root(mounts, folder_bytes)
    Path(folder).mkdir(exist_ok=True)
    os.chdir(folder)
    if LINUX:
        _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # No program may read or write this one's memory; its own is its own again from exec on.
        _libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        become(program, limits, shared, theirs)
    theirs.close()
    os.write(control, f"group {child}\n".encode())
    with ours:
        forks = socket.recv_fds(ours, 1, 1)[1]
    watch(child, control, forks, num_processes, shared)


def become(
    program: Sequence[str], limits: dict[str, int], shared: bool, watcher: socket.socket
) -> None:
    """Become the program, with its limits and without privileges; does not return.

    The descriptor of the listener for forks, if there is one, is sent to `watcher`.
    """
    try:
        os.setsid()
        for name, value in limits.items():
            kind = getattr(resource, name)
            soft, hard = value, value + (name == "RLIMIT_CPU")
            _, most = resource.getrlimit(kind)
            if most != resource.RLIM_INFINITY:
                soft, hard = min(soft, most), min(hard, most)
            resource.setrlimit(kind, (soft, hard))
        if LINUX:
            drop_privileges()
            socket.send_fds(watcher, [b"."], guard(shared))
        watcher.close()
        os.execv(program[0], list(program))
    except (OSError, ValueError) as error:
        print(f"cannot start {program[0]}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(126)


def watch(child: int, control: int, forks: Sequence[int], num_processes: int, shared: bool) -> None:
    """Wait for the program, allow its forks, and report; does not return."""

    def end(message: str) -> None:
        if shared:
            kill_all(child)
        with contextlib.suppress(OSError):
            os.write(control, f"{message}\n".encode())
        os._exit(0)

    for readable in events([control, *forks]):
        if control in readable:
            end("abandoned")
        if len(descendants(num_processes)) > num_processes:
            end("processes")
        for listener in readable:
            allow_fork(listener)
        for ended, code in exits():
            if ended == child:
                end(f"exit {code}" if code >= 0 else f"signal {-code}")


def events(descriptors: Sequence[int]) -> Iterator[set[int]]:
    """The readable ones of `descriptors`, whenever one is, a child has ended, or a tick passed."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    for descriptor in (wake, *descriptors):
        poll.register(descriptor, select.POLLIN)
    while True:
        readable = {descriptor for descriptor, _ in poll.poll(TICK_SECONDS * 1000)}
        if wake in readable:
            os.read(wake, _AT_A_TIME)
        yield readable - {wake}


def allow_fork(listener: int) -> None:
    """Let the process that waits in a fork continue, unless it was killed meanwhile."""
    asked = bytearray(_RECEIVE_BYTES)
    with contextlib.suppress(OSError):
        fcntl.ioctl(listener, _RECEIVE, asked)
        (identity,) = struct.unpack_from("Q", asked)
        fcntl.ioctl(listener, _SEND, struct.pack("QqiI", identity, 0, 0, _CONTINUE))


def exits() -> Iterator[tuple[int, int]]:
    """Process id and exit code (negative: the signal) of each child that has ended."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended[0], os.waitstatus_to_exitcode(ended[1])


def kill_all(child: int) -> None:
    """Kill the program's group, then any descendants that have left it."""
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    while running := descendants(_AT_A_TIME):
        for process in running:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.001)


def descendants(limit: int) -> list[int]:
    """Descendants of this process: not all if more than `limit`, none if /proc is missing."""
    result: list[int] = []
    parents = [os.getpid()]
    while parents and len(result) <= limit:
        parent = parents.pop()
        for file in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = [int(word) for word in file.read_text().split()]
                result += children
                parents += children
    return result


def build_root(mounts: Sequence[tuple[str, str]], folder_bytes: int) -> None:
    """Replace the root by a read-only one of `mounts`, a new /proc, /tmp and /dev/shm, and devices.

    Needs a private mount namespace, and `mount_setattr` (Linux 5.12).
    """
    mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, f"size={folder_bytes},mode=755")
    Path("/tmp/old").mkdir()
    check(_libc.pivot_root(b"/tmp", b"/tmp/old"), "pivot_root")
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
    # /proc/sys has kernel settings, and the kernel may let root of a user namespace change them.
    make_read_only("/proc")
    check(_libc.umount2(b"/old", _MNT_DETACH), "umount2")
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
    check(_libc.syscall(*call), f"mount_setattr {target}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """mount(2)."""
    kind_bytes = kind.encode() if kind else None
    call = source.encode(), target.encode(), kind_bytes, ctypes.c_ulong(flags), data.encode()
    check(_libc.mount(*call), f"mount {target}")


def check(result: int, call: str) -> None:
    """Raise OSError if a call of the C library failed."""
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")


def drop_privileges() -> None:
    """Drop root's privileges, and those of setuid programs, from the next exec on."""
    for capability in range(64):
        _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    _libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def guard(shared: bool) -> list[int]:
    """Make every fork wait for the watcher; refuse what reaches other processes or the network.

    Signals only if `shared`: elsewhere there is nothing else to reach.

    Returns:
        The descriptor of the listener; empty if the kernel has none.
    """
    calls = _CALLS.get(os.uname().machine)
    if calls is None:
        return []
    reaching = calls.reaching if shared else ()
    refused = dict.fromkeys((*calls.refused, *reaching), _REFUSE | errno.EPERM)
    asked = dict.fromkeys(calls.forking, _ASK) | {calls.clone3: _REFUSE | errno.ENOSYS}
    listener = answer_calls(calls, refused | asked, _NEW_LISTENER)
    if listener < 0:
        answer_calls(calls, refused, 0)
    return [listener] if listener >= 0 else []


def answer_calls(calls: Calls, answers: Mapping[int, int], flags: int) -> int:
    """Install a seccomp filter that gives each call its answer in `answers`, and allows all others.

    `struct sock_filter {u16 code; u8 jt, jf; u32 k}`: check the architecture, then the call's
    number: refuse those of the x32 ABI, and compare with each call that has an answer. Last come
    the calls of which some arguments are refused; the second argument's lower half is at 24.
    """
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    lines = [(load, 0, 0, 4), (equal, 1, 0, calls.architecture), (give, 0, 0, _KILL)]
    lines += [(load, 0, 0, 0), (at_least, 0, 1, 0x40000000), (give, 0, 0, _REFUSE | errno.EPERM)]
    for call, answer in answers.items():
        lines += [(equal, 0, 1, call), (give, 0, 0, answer)]
    refuse, allow = (give, 0, 0, _REFUSE | errno.EPERM), (give, 0, 0, _ALLOW)
    for name, commands in _SETTING_OWNERS.items():
        lines += [(equal, 0, 3 + len(commands), getattr(calls, name)), (load, 0, 0, 24)]
        jumps = range(len(commands), 0, -1)
        lines += [(equal, jump, 0, one) for jump, one in zip(jumps, commands, strict=True)]
        lines += [allow, refuse]
    # Limits of another process: its number, the first argument, is not 0.
    lines += [(equal, 0, 6, calls.prlimit64), (load, 0, 0, 16), (equal, 0, 3, 0)]
    lines += [(load, 0, 0, 20), (equal, 0, 1, 0), allow, refuse, allow]
    code = b"".join(struct.pack("HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HP", len(lines), ctypes.addressof(buffer))
    return int(_libc.syscall(calls.seccomp, _MODE_FILTER, flags, program))


if __name__ == "__main__":
    main(sys.argv[2:], **json.loads(sys.argv[1]))
