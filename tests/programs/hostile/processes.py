"""Hostile programs: each function is run alone, and returns whether what it tries was refused."""

import contextlib
import ctypes
import glob
import os
import resource
import socket
import struct

from _shared import _call, _fails_in_child, _no_call, _none, _none_opens, _none_succeeds

PARENT = os.getppid()


def _read(path):
    return len(open(path, "rb").read(8)) > 0


def _others(*excluded):
    """The numbers of all processes but this one and these; its parent's where it can list none."""
    names = [str(PARENT)]
    with contextlib.suppress(OSError):
        names += os.listdir("/proc")
    return {int(name) for name in names if name.isdigit()} - {os.getpid(), *excluded}


def command_lines_of_others():
    """Lists what else runs on the machine, with all arguments."""
    return _none(_read, (f"/proc/{one}/cmdline" for one in _others(PARENT)))


def contents_of_others():
    """Reads the environment, the memory and where what is in it, of every process that is not its
    own, such as those beside it and the harness; and opens the files that they have open."""
    names = ("environ", "maps", "smaps", "auxv", "pagemap", "stack", "syscall", "io")
    files = [path for one in _others() for path in glob.glob(f"/proc/{one}/fd/*")]
    return (
        _none(_read, (f"/proc/{one}/{name}" for one in _others() for name in names))
        and _none(
            lambda one: _read(f"/proc/{one}/maps") and os.open(f"/proc/{one}/mem", os.O_RDWR),
            _others(),
        )
        and _none_opens(os.O_RDONLY | os.O_NONBLOCK, *files)
    )


def files_of_parent():
    """Opens its parent's memory, also by the way of its threads, descriptors, namespaces and
    program."""
    folder = f"/proc/{PARENT}"
    memory = (f"{folder}/mem", *glob.glob(f"{folder}/task/*/mem"))
    spaces = (f"{folder}/ns/{name}" for name in ("user", "mnt", "net", "pid", "ipc", "uts"))
    files = (f"{folder}/fd/{number}" for number in range(20))
    return (
        _none_opens(os.O_RDWR | os.O_NONBLOCK, *memory, *files)
        and _none_opens(os.O_RDONLY, *spaces, f"{folder}/exe")
        and _none_succeeds(lambda: os.readlink(f"{folder}/exe"))
    )


def groups_of_controls():
    """Opens the control groups, to leave the limits of its own and to limit others."""
    groups = glob.glob("/sys/fs/cgroup/*/cgroup.procs")
    return _none_opens(os.O_WRONLY, "/sys/fs/cgroup/cgroup.procs", *groups)


def leave_group():
    """Leaves its process group, or its session, so that whoever kills the group misses it."""
    # Whatever is left of a process namespace ends with its process 1.
    return PARENT == 1 or (
        _fails_in_child(lambda: os.setsid() is None)
        and _fails_in_child(lambda: os.setpgid(0, 0) is None)
    )


def reach_into_others():
    """Traces its parent, reads, writes, moves and pushes out its memory, compares and takes its
    descriptors, asks for its locks, and for a descriptor that stands for it."""
    nodes, words = ctypes.byref(ctypes.c_ulong(1)), ctypes.create_string_buffer(64)
    return _no_call(
        (101, 117, 0, 0, 0, 0),  # ptrace: is traced, seizes, attaches, lets go on
        (101, 117, 0x4206, PARENT, 0, 0),
        (101, 117, 16, PARENT, 0, 0),
        (101, 117, 17, PARENT, 0, 0),
        (310, 270, PARENT, 0, 0, 0, 0, 0),  # process_vm_readv
        (311, 271, PARENT, 0, 0, 0, 0, 0),  # process_vm_writev
        (440, 440, -1, 0, 0, 20, 0),  # process_madvise
        (256, 238, PARENT, 64, nodes, nodes),  # migrate_pages
        (279, 239, PARENT, 0, 0, 0, 0, 0),  # move_pages
        (312, 272, os.getpid(), PARENT, 0, 0, 0),  # kcmp
        (274, 100, PARENT, words, words),  # get_robust_list
        (434, 434, PARENT, 0),  # pidfd_open
        (438, 438, -1, 0, 0),  # pidfd_getfd
    )


def schedule_others():
    """Sets the limits of every process that is not its own; the priorities, the processors and the
    scheduling of its parent, which watches it; and its own scheduling before all others."""
    words = ctypes.create_string_buffer(struct.pack("I", 56), 128)
    limits = ((302, 261, one, resource.RLIMIT_NOFILE, None, None) for one in _others())
    return _no_call(
        *limits,  # prlimit64
        (252, 31, 1, PARENT),  # ioprio_get
        (251, 30, 1, PARENT, 4),  # ioprio_set
        (140, 141, 0, PARENT),  # getpriority
        (141, 140, 0, PARENT, 0),  # setpriority
        (203, 122, PARENT, 128, words),  # sched_setaffinity
        (144, 119, PARENT, 0, struct.pack("i", 0)),  # sched_setscheduler
        (144, 119, 0, 1, struct.pack("i", 1)),
        (315, 275, PARENT, words, 56, 0),  # sched_getattr
        (314, 274, PARENT, words, 0),  # sched_setattr
    )


def settings_of_parent():
    """Opens what can be set of its parent by files, to change it, such as whether the kernel ends
    it first when memory is short."""
    names = ("clear_refs", "timerslack_ns", "coredump_filter", "uid_map", "setgroups", "sched")
    return _none_opens(
        os.O_WRONLY, *(f"/proc/{PARENT}/{name}" for name in (*names, "oom_score_adj"))
    )


def signal_by_owner():
    """Has the kernel signal its parent, and its whole group, when a pipe or a socket can be read,
    by all forms of the call, and chooses the signal."""
    pipe, ours = os.pipe()[0], socket.socketpair()[0]
    return _no_call(
        (72, 25, pipe, 8, PARENT),  # fcntl, F_SETOWN
        (72, 25, pipe, 0x7_0000_0008, PARENT),  # bits above those that the kernel looks at
        (72, 25, pipe, 15, struct.pack("ii", 2, PARENT)),  # F_SETOWN_EX
        (72, 25, pipe, 10, 9),  # F_SETSIG
        (16, 29, ours.fileno(), 0x8901, struct.pack("i", PARENT)),  # ioctl, FIOSETOWN
        (16, 29, ours.fileno(), 0x8902, struct.pack("i", -PARENT)),  # SIOCSPGRP
    )


def signal_others():
    """Sends a signal to every process that is not its own, to threads, to all with a single call,
    to its parent's group, by a descriptor, and with a value."""
    queued = struct.pack("iiiiii", 0, 0, -1, 0, os.getpid(), os.getuid()).ljust(128, b"\0")
    group, others = os.getpgid(PARENT), _others(1)
    return (
        _none(lambda one: os.kill(one, 0), (-1, *others))
        and _none_succeeds(lambda: group != 0 and os.killpg(group, 0))
        and _none(lambda one: _call(200, 130, one, 0) == 0, others)  # tkill
        and _none(lambda one: _call(234, 131, one, one, 0) == 0, others)  # tgkill
        and _none(lambda one: _call(129, 138, one, 0, queued) == 0, others)  # rt_sigqueueinfo
        and _no_call((424, 424, -1, 0, 0, 0))  # pidfd_send_signal
    )


def terminals_and_keyboards():
    """Opens the terminals of other programs, to read what is typed and to type into them, and the
    machine's keyboards and the device that makes new ones."""
    paths = ("/dev/tty", "/dev/console", "/dev/tty1", *glob.glob("/dev/pts/[0-9]*"), "/dev/uinput")
    keyboards = (*glob.glob("/dev/input/event*"), *glob.glob("/dev/hidraw*"))
    return _none_opens(os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK, *paths, *keyboards)
