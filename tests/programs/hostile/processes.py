"""Hostile programs: each function is run alone, and returns whether what it tries was refused."""

import ctypes
import fcntl
import glob
import itertools
import os
import re
import resource
import socket
import struct
import time

from _shared import _call, _none, _none_opens, libc

PARENT = f"/proc/{os.getppid()}"


def _read(path):
    return len(open(path, "rb").read(8)) > 0


def _others(*more):
    """The numbers of all processes but this one."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid(), *more}


def addresses_of_parent():
    """Reads where what is in its parent's memory, past the randomness of addresses."""
    names = ("maps", "smaps", "auxv", "pagemap", "stack", "syscall")
    return _none(_read, (f"{PARENT}/{name}" for name in names))


def advise_memory_of_parent():
    """Has the kernel push its parent's memory out to the disk."""
    parent = libc.syscall(434, os.getppid(), 0)
    return parent < 0 or libc.syscall(440, parent, 0, 0, 20, 0) < 0


def ask_to_be_traced():
    """Asks its parent to trace it."""
    return _call(101, 117, 0, 0, 0, 0) < 0


def attach_to_parent():
    """Attaches to its parent as a debugger does, and lets it go on."""
    if _call(101, 117, 16, os.getppid(), 0, 0) < 0:
        return True
    time.sleep(0.1)
    _call(101, 117, 17, os.getppid(), 0, 0)
    return False


def command_lines_of_others():
    """Lists what else runs on the machine, with all arguments."""
    return _none(_read, (f"/proc/{one}/cmdline" for one in _others(os.getppid())))


def compare_with_parent():
    """Compares its descriptors with its parent's, to learn which they share."""
    us = (os.getpid(), os.getppid())
    return _none(lambda number: _call(312, 272, *us, 0, 0, number) >= 0, range(10))


def descriptor_of_parent():
    """Gets a descriptor that stands for its parent, by which that can be signalled and waited
    for."""
    os.pidfd_open(os.getppid())


def disk_priority_of_parent():
    """Sets the priority with which its parent uses the disk."""
    now = _call(252, 31, 1, os.getppid())
    return now < 0 or _call(251, 30, 1, os.getppid(), now) < 0


def environment_of_ancestors():
    """Reads the environment of its parent's parent, and so on: one of them is the harness."""
    ancestors = [os.getppid()]
    while ancestors[-1] > 0:
        status = open(f"/proc/{ancestors[-1]}/status").read()
        ancestors.append(int(re.search(r"PPid:\s*(\d+)", status)[1]))
    return _none(_read, (f"/proc/{one}/environ" for one in ancestors))


def environment_of_others():
    """Reads the environment of every process that is not its own, with the keys in it."""
    return _none(_read, (f"/proc/{one}/environ" for one in _others()))


def environment_of_parent():
    """Reads its parent's environment."""
    open(f"{PARENT}/environ", "rb").read()


def files_of_others():
    """Finds which files other processes have open, and opens them too."""
    paths = [path for one in _others() for path in glob.glob(f"/proc/{one}/fd/*")]
    return _none_opens(os.O_RDONLY, *filter(os.path.isfile, paths))


def first_victim_of_memory():
    """Chooses that the kernel ends its parent first when memory is short."""
    with open(f"{PARENT}/oom_score_adj", "r+") as file:
        now = file.read()
        file.seek(0)
        file.write(now)


def group_of_controls():
    """Opens the control groups, to leave the limits of its own and to limit others."""
    groups = glob.glob("/sys/fs/cgroup/*/cgroup.procs")
    return _none_opens(os.O_WRONLY, "/sys/fs/cgroup/cgroup.procs", *groups)


def group_of_its_own():
    """Puts a child into a process group of its own, so that whoever kills the group misses it."""
    child = os.fork()
    if child == 0:
        time.sleep(0.1)
        os._exit(0)
    os.setpgid(child, child)
    # Whatever is left of a process namespace ends with its process 1.
    return os.getppid() == 1


def input_and_output_of_parent():
    """Reads how many bytes its parent has read and written, which tells when it is watched."""
    open(f"{PARENT}/io").read()


def keys_of_keyboard():
    """Opens the machine's keyboards, to read what is typed, and the device that makes new ones."""
    devices = (*glob.glob("/dev/input/event*"), *glob.glob("/dev/hidraw*"))
    return _none_opens(os.O_WRONLY | os.O_NONBLOCK, "/dev/uinput", *devices)


def leave_group():
    """Leaves its process group and session, so that whoever kills the group misses it."""
    child = os.fork()
    if child == 0:
        os._exit(_none(lambda _: os.setsid(), [0]))
    # Whatever is left of a process namespace ends with its process 1.
    return os.waitpid(child, 0)[1] != 0 or os.getppid() == 1


def limits_of_others():
    """Sets limits of every process that is not its own, to what they are."""
    kind, limits = resource.RLIMIT_NOFILE, resource.prlimit
    return _none(lambda one: limits(one, kind, limits(one, kind)), _others())


def limits_of_parent():
    """Sets a limit of its parent, to what it is."""
    parent, kind = os.getppid(), resource.RLIMIT_NOFILE
    resource.prlimit(parent, kind, resource.prlimit(parent, kind))


def locks_of_parent():
    """Asks where in memory its parent keeps a list of its locks."""
    head, size = ctypes.c_void_p(), ctypes.c_size_t()
    return _call(274, 100, os.getppid(), ctypes.byref(head), ctypes.byref(size)) < 0


def memory_file_of_parent():
    """Opens its parent's memory as a file."""
    os.open(f"{PARENT}/mem", os.O_RDWR)


def memory_of_others():
    """Opens the memory of every process that is not its own, and finds out what is where in it."""
    others = _others()
    unopened = _none_opens(os.O_RDONLY, *(f"/proc/{one}/mem" for one in others))
    return unopened or _none(_read, (f"/proc/{one}/maps" for one in others))


def memory_of_threads_of_parent():
    """Opens its parent's memory by the way of its threads."""
    return _none_opens(os.O_RDWR, *glob.glob(f"{PARENT}/task/*/mem"))


def move_pages_of_parent():
    """Moves its parent's memory to other nodes of the machine."""
    nodes = ctypes.byref(ctypes.c_ulong(1))
    failed = _call(256, 238, os.getppid(), 64, nodes, nodes) < 0
    return failed and _call(279, 239, os.getppid(), 0, 0, 0, 0, 0) < 0


def namespaces_of_parent():
    """Opens the namespaces of its parent, to join them."""
    names = ("user", "mnt", "net", "pid", "ipc", "uts")
    return _none_opens(os.O_RDONLY, *(f"{PARENT}/ns/{name}" for name in names))


def output_of_parent():
    """Opens its parent's descriptors by number, such as that of the harness."""
    return _none_opens(os.O_RDWR | os.O_NONBLOCK, *(f"{PARENT}/fd/{n}" for n in range(20)))


def priority_of_parent():
    """Sets the priority of its parent, which watches it."""
    now = os.getpriority(os.PRIO_PROCESS, os.getppid())
    os.setpriority(os.PRIO_PROCESS, os.getppid(), now)


def processors_of_parent():
    """Chooses the processors on which its parent, which watches it, may run."""
    os.sched_setaffinity(os.getppid(), os.sched_getaffinity(os.getppid()))


def program_of_parent():
    """Opens the file that its parent runs, and finds where it is."""
    os.readlink(f"{PARENT}/exe")
    os.open(f"{PARENT}/exe", os.O_RDONLY)


def read_memory_of_parent():
    """Reads its parent's memory by process_vm_readv."""
    return _call(310, 270, os.getppid(), 0, 0, 0, 0, ctypes.c_ulong(0)) < 0


def scheduling_attributes_of_parent():
    """Chooses how its parent is scheduled by the newer call, which sets priorities too."""
    attributes = ctypes.create_string_buffer(56)
    failed = _call(315, 275, os.getppid(), attributes, 56, 0) < 0
    return failed or _call(314, 274, os.getppid(), attributes, 0) < 0


def scheduling_in_real_time():
    """Has itself scheduled before all other processes of the machine."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def scheduling_of_parent():
    """Chooses how its parent, which watches it, is scheduled."""
    now = os.sched_getscheduler(os.getppid())
    os.sched_setscheduler(os.getppid(), now, os.sched_getparam(os.getppid()))


def seize_parent():
    """Attaches to its parent as a debugger does, without stopping it."""
    return _call(101, 117, 0x4206, os.getppid(), 0, 0) < 0


def settings_of_parent():
    """Opens what can be set of its parent by files, to change it."""
    names = ("clear_refs", "timerslack_ns", "coredump_filter", "uid_map", "setgroups", "sched")
    return _none_opens(os.O_WRONLY, *(f"{PARENT}/{name}" for name in names))


def signal_by_descriptor():
    """Sends a signal to another process by a descriptor that stands for it."""
    descriptors = (libc.syscall(434, one, 0) for one in [*_others(1)][:50])
    return _none(lambda other: libc.syscall(424, other, 0, 0, 0) >= 0, descriptors)


def signal_by_group_ioctl():
    """Becomes the owner of a socket, whose signals go to its parent's whole group."""
    fcntl.ioctl(socket.socketpair()[0], 0x8902, struct.pack("i", -os.getppid()))


def signal_by_ioctl():
    """Becomes the owner of a socket, whose signals go to its parent."""
    fcntl.ioctl(socket.socketpair()[0], 0x8901, struct.pack("i", os.getppid()))


def signal_by_long_command():
    """Sets a pipe's owner with bits above those that the kernel looks at in a command."""
    return _call(72, 25, os.pipe()[0], ctypes.c_uint64(0x7_0000_0008), os.getppid()) < 0


def signal_by_owner():
    """Has the kernel send its parent a signal when a pipe can be read."""
    fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())


def signal_by_owner_in_full():
    """Has the kernel signal a process group when a pipe can be read, by the call's newer form."""
    fcntl.fcntl(os.pipe()[0], 15, struct.pack("ii", 2, os.getppid()))


def signal_of_choice():
    """Chooses the signal that the kernel sends when a pipe can be read."""
    fcntl.fcntl(os.pipe()[0], 10, 9)


def signal_to_all():
    """Sends a signal to all processes there are with a single call."""
    os.kill(-1, 0)


def signal_to_group_of_parent():
    """Sends a signal to the group of processes that its parent is in."""
    group = os.getpgid(os.getppid())
    if group not in (0, os.getpgid(0)):
        os.killpg(group, 0)
    return not group


def signal_to_others():
    """Sends a signal to every process that is not its own."""
    return _none(lambda one: os.kill(one, 0), _others(1))


def signal_to_thread():
    """Sends a signal to a single thread of another process, by both calls for that."""
    refused = _none(lambda one: _call(200, 130, one, 0) == 0, _others(1))
    return refused and _none(lambda one: _call(234, 131, one, one, 0) == 0, _others(1))


def signal_with_value():
    """Queues a signal with a value for another process."""
    queued = struct.pack("iiiiii", 0, 0, -1, 0, os.getpid(), os.getuid()).ljust(128, b"\0")
    return _none(lambda one: _call(129, 138, one, 0, queued) == 0, _others(1))


def take_descriptor_of_parent():
    """Takes a descriptor of its parent, such as the socket to the harness."""
    parent = libc.syscall(434, os.getppid(), 0)
    return _none(lambda number: libc.syscall(438, parent, number, 0) >= 0, range(3, 20))


def terminals_of_others():
    """Opens the terminals of other programs, to read what is typed and to type into them."""
    paths = ("/dev/tty", "/dev/console", "/dev/tty1", *glob.glob("/dev/pts/[0-9]*"))
    return _none_opens(os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK, *paths)


def type_into_terminal():
    """Types into the terminal of whoever started it, whose shell would run that later."""
    terminals = filter(os.isatty, (0, 1, 2))
    # A space that is erased again at once.
    typed = itertools.product(terminals, (0x5412,), (b" ", b"\x7f"))
    return _none(lambda arguments: fcntl.ioctl(*arguments), typed)


def write_memory_of_neighbours():
    """Opens the memory of programs that run beside it to write to it, and so change their
    results."""
    others = [one for one in _others(os.getppid()) if os.path.exists(f"/proc/{one}/exe")]
    unread = _none(_read, (f"/proc/{one}/maps" for one in others))
    return unread or _none_opens(os.O_RDWR, *(f"/proc/{one}/mem" for one in others))


def write_memory_of_parent():
    """Writes its parent's memory by process_vm_writev."""
    return _call(311, 271, os.getppid(), 0, 0, 0, 0, ctypes.c_ulong(0)) < 0
