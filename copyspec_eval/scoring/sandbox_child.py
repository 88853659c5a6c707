"""Runs one untrusted program, and leaves nothing of it running; `sandbox` starts this file.

    python -I -S sandbox_child.py SETTINGS PROGRAM [ARGUMENT…]

SETTINGS is a JSON object of the arguments of `main`. It limits the program, waits for it, watches
how many processes it makes, and writes one line to the socket `control`: `exit N`, `signal N` or
`processes`. When the other end of that socket is closed, everything is killed. As process 1 of a
PID namespace it cannot be killed from inside, and the kernel ends the namespace with it. Elsewhere
the program may neither leave its process group nor send signals, and the group is killed in one
call: a fork bomb would outrun one that kills process by process.

Standard library only, and nothing of this package: it starts in milliseconds, for every program.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path

TICK_SECONDS = 0.02
"""How often the processes are counted."""

_AT_A_TIME = 1000

LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True)

# <sys/mount.h>, <linux/mount.h>
_NOSUID, _NODEV, _NOEXEC, _RDONLY, _REMOUNT, _BIND, _REC = 2, 4, 8, 1, 32, 4096, 16384
_MNT_DETACH = 2
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_DEVICES = ("null", "zero", "full", "random", "urandom")

# <sys/prctl.h>
_SET_SECCOMP, _CAPBSET_DROP, _SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVS = 22, 24, 36, 38
_SECCOMP_MODE_FILTER = 2

# <linux/audit.h> and the system calls by which a process reaches others or the network, or leaves
# its group: kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal,
# pidfd_getfd, ptrace, process_vm_readv, process_vm_writev, socket, io_uring_setup, setpgid, setsid
_CALLS = {
    "x86_64": (0xC000003E, (62, 200, 234, 129, 297, 424, 438, 101, 310, 311, 41, 425, 109, 112)),
    "aarch64": (0xC00000B7, (129, 130, 131, 138, 240, 424, 438, 117, 270, 271, 198, 425, 154, 157)),
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
        mounts: `(source, target)` of what can be read, to build a file system from; None where
            there is one already.
        shared: whether the processes and the network are the machine's.
        num_processes: how many processes there may be at a time.
        folder_bytes: room in a file system that is built.
        limits: resource limits by name, `{"RLIMIT_CPU": 8}`.
    """
    os.set_inheritable(control, False)
    if mounts is not None:
        build_root(mounts, folder_bytes)
    os.chdir(folder)
    if LINUX:
        _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = os.fork()
    if child == 0:
        become(program, limits, shared)
    watch(child, control, num_processes, shared)


def become(program: Sequence[str], limits: dict[str, int], shared: bool) -> None:
    """Turn into the program, with its limits and without privileges; does not return."""
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
            if shared:
                forbid_calls()
        os.execv(program[0], list(program))
    except (OSError, ValueError) as error:
        print(f"cannot start {program[0]}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(126)


def watch(child: int, control: int, num_processes: int, shared: bool) -> None:
    """Wait for the program, and report; does not return."""

    def end(message: str) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if shared:
            kill_all(child)
        with contextlib.suppress(OSError):
            os.write(control, message.encode())
        os._exit(0)

    def tick(*_: object) -> None:
        if select.select([control], [], [], 0)[0]:
            end("abandoned")
        if len(descendants(num_processes)) > num_processes:
            end("processes")

    signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, TICK_SECONDS, TICK_SECONDS)
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            end(f"exit {code}" if code >= 0 else f"signal {-code}")


def kill_all(child: int) -> None:
    """Kill the program's group, then descendants that may have left it where nothing forbids it."""
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


def descendants(enough: int) -> list[int]:
    """Processes below this one, some if there are more than `enough`, none if /proc is missing."""
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting and len(found) <= enough:
        parent = waiting.pop()
        for file in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = [int(word) for word in file.read_text().split()]
                found += children
                waiting += children
    return found


def build_root(mounts: Sequence[tuple[str, str]], folder_bytes: int) -> None:
    """Make a new, read-only root of `mounts`, with a /tmp and nothing else of the machine's.

    Needs a mount namespace of its own, and `mount_setattr` (Linux 5.12).
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
    # Root's kernel settings are there: to the kernel, root of a user namespace may still be root.
    make_read_only("/proc")
    check(_libc.umount2(b"/old", _MNT_DETACH), "umount2")
    Path("/old").rmdir()
    mount("none", "/", None, _BIND | _REMOUNT | _RDONLY | _NOSUID | _NODEV)


def bind(source: str, target: str) -> None:
    """Make `source` appear at `target` too, with what is mounted below it."""
    place = Path(target)
    if Path(source).is_dir():
        place.mkdir(parents=True, exist_ok=True)
    elif not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    mount(source, target, None, _BIND | _REC)


def make_read_only(target: str) -> None:
    """`target` and what is mounted below it."""
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
    """Root's privileges, and those of setuid programs, are lost at the coming exec."""
    for capability in range(64):
        _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    _libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def forbid_calls() -> None:
    """No signals, no sockets, no other process group: a seccomp filter, where there are such.

    `struct sock_filter {u16 code; u8 jt, jf; u32 k}`: load the architecture and compare, then load
    the call's number and compare with each that is forbidden (and with those of the x32 ABI).
    """
    architecture, forbidden = _CALLS.get(os.uname().machine, (0, ()))
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    kill, not_permitted, allow = 0x80000000, 0x00050001, 0x7FFF0000
    lines = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, kill), (load, 0, 0, 0)]
    lines += [(equal, len(forbidden) - index + 1, 0, call) for index, call in enumerate(forbidden)]
    lines += [(at_least, 1, 0, 0x40000000), (give, 0, 0, allow), (give, 0, 0, not_permitted)]
    code = b"".join(struct.pack("HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HP", len(lines), ctypes.addressof(buffer))
    if architecture:
        _libc.prctl(_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0)


if __name__ == "__main__":
    main(sys.argv[2:], **json.loads(sys.argv[1]))
