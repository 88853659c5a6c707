"""Runs one untrusted program, and leaves nothing of it running.

This process limits the program, waits for it, counts its processes, and writes two lines to the
socket `control`: `group N`, its process group, and then `exit N`, `signal N` or `processes`. When
the other end of that socket is closed, everything is killed. As process 1 of a PID namespace it
cannot be killed from inside, and the kernel ends the namespace with it. Without a namespace the
program can neither leave its process group nor send signals, and the group is killed in one call.
A fork bomb would outrun killing one by one, and polling: each fork waits for this process's
permission (a seccomp listener, Linux 5.5; without, processes are counted in ticks).
"""

import fcntl
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from . import LINUX, libc
from .filter import guard
from .landlock import forbid_tracing, restrict

_TICK_SECONDS = 0.02  # interval at which the processes are counted
_AT_A_TIME = 1000

# <sys/prctl.h>
_SET_DUMPABLE, _CAPBSET_DROP, _SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVS = 4, 24, 36, 38

_RECEIVE, _RECEIVE_BYTES, _SEND, _CONTINUE = 0xC0502100, 80, 0xC0182101, 1


def main(
    program: Sequence[str],
    *,
    control: int,
    folder: str,
    files: dict[str, Sequence[str]] | None,
    shared: bool,
    num_processes: int,
    limits: dict[str, int],
) -> None:
    """Run `program` in `folder`; `files` are for `restrict`, `limits` by name; does not return."""
    os.set_inheritable(control, False)
    Path(folder).mkdir(exist_ok=True)
    os.chdir(folder)
    if LINUX:
        libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # No program may read or write this process's memory; exec makes its own dumpable again.
        libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        become(program, limits, shared, files, theirs)
    theirs.close()
    try:
        os.write(control, f"group {child}\n".encode())
    except OSError:  # the caller was interrupted before the program began
        kill_all(child)
        os._exit(0)
    with ours:
        forks = socket.recv_fds(ours, 1, 1)[1]
    watch(child, control, forks, num_processes, shared)


def become(
    program: Sequence[str],
    limits: dict[str, int],
    shared: bool,
    files: dict[str, Sequence[str]] | None,
    watcher: socket.socket,
) -> None:
    """Become the program, limited; `watcher` gets the listener for forks; does not return."""
    try:
        os.setsid()
        if LINUX:
            # Root's privileges, and those of setuid programs, are gone from the next exec on.
            for capability in range(64):
                libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
            libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if files is not None:
            restrict(**files)
        elif shared:
            forbid_tracing()
        if LINUX:
            socket.send_fds(watcher, [b"."], guard(shared))
        watcher.close()
        # Not earlier: the limit on open files also limits descriptors in flight to others.
        for name, value in limits.items():
            kind = getattr(resource, name)
            soft, hard = value, value + (name == "RLIMIT_CPU")
            _, most = resource.getrlimit(kind)
            if most != resource.RLIM_INFINITY:
                soft, hard = min(soft, most), min(hard, most)
            resource.setrlimit(kind, (soft, hard))
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
        with suppress(OSError):
            os.write(control, f"{message}\n".encode())
        os._exit(0)

    poll = select.poll()
    for descriptor in (control, *forks):
        poll.register(descriptor, select.POLLIN)
    # Readable at the program's end; where the system has no such descriptors, a tick sees that.
    with suppress(OSError, AttributeError):
        poll.register(os.pidfd_open(child), select.POLLIN)
    while True:
        readable = {descriptor for descriptor, _ in poll.poll(_TICK_SECONDS * 1000)}
        if control in readable:
            end("abandoned")
        if len(descendants(num_processes)) > num_processes:
            end("processes")
        for listener in readable.intersection(forks):
            allow_fork(listener)
        for ended, code in exits():
            if ended == child:
                end(f"exit {code}" if code >= 0 else f"signal {-code}")


def allow_fork(listener: int) -> None:
    """Let the process that waits in a fork continue, unless it was killed meanwhile."""
    asked = bytearray(_RECEIVE_BYTES)
    with suppress(OSError):
        fcntl.ioctl(listener, _RECEIVE, asked)
        (identity,) = struct.unpack_from("Q", asked)
        fcntl.ioctl(listener, _SEND, struct.pack("QqiI", identity, 0, 0, _CONTINUE))


def exits() -> Iterator[tuple[int, int]]:
    """Process id and exit code (negative: the signal) of each child that has ended."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended[0], os.waitstatus_to_exitcode(ended[1])


def kill_all(child: int) -> None:
    """Kill the program's group, then any descendants that have left it."""
    with suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    while running := descendants(_AT_A_TIME):
        for process in running:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        for _ in exits():
            pass
        time.sleep(0.001)


def descendants(limit: int) -> list[int]:
    """Descendants of this process: not all if more than `limit`, none if /proc is missing."""
    result: list[int] = []
    parents = [os.getpid()]
    while parents and len(result) <= limit:
        # The parent may end before its folder is listed, and each task before it is read.
        tasks: list[Path] = []
        with suppress(OSError):
            tasks = list(Path(f"/proc/{parents.pop()}/task").glob("*/children"))
        for file in tasks:
            with suppress(OSError):
                children = [int(word) for word in file.read_text().split()]
                result += children
                parents += children
    return result
