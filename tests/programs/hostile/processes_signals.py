"""Hostile programs: each function is run alone, and returns whether what it tries was refused."""

import ctypes
import fcntl
import glob
import os
import platform
import socket
import struct
import time

libc = ctypes.CDLL(None, use_errno=True)


def _call(number_on_x86_64, number_on_aarch64, *arguments):
    numbers = {"x86_64": number_on_x86_64, "aarch64": number_on_aarch64}
    return libc.syscall(numbers[platform.machine()], *arguments)


def ask_to_be_traced():
    """Asks its parent to trace it."""
    return _call(101, 117, 0, 0, 0, 0) < 0


def attach_to_parent():
    """Attaches to its parent as a debugger does, and lets it go on."""
    number = {"x86_64": 101, "aarch64": 117}[platform.machine()]
    parent = os.getppid()
    if libc.syscall(number, 16, parent, 0, 0) < 0:
        return True
    else:
        time.sleep(0.1)
        libc.syscall(number, 17, parent, 0, 0)
        return False


def descriptor_of_parent():
    """Gets a descriptor that stands for its parent, by which that can be signalled and waited
    for."""
    os.close(os.pidfd_open(os.getppid()))


def group_of_controls():
    """Opens the control groups, to leave the limits of its own and to limit others."""
    opened = 0
    for path in ("/sys/fs/cgroup/cgroup.procs", *glob.glob("/sys/fs/cgroup/*/cgroup.procs")):
        try:
            os.close(os.open(path, os.O_WRONLY))
            opened += 1
        except OSError:
            continue
    return not opened


def group_of_its_own():
    """Puts a child into a process group of its own, so that whoever kills the group misses it."""
    child = os.fork()
    if child == 0:
        time.sleep(0.1)
        os._exit(0)
    try:
        os.setpgid(child, child)
        # Whatever is left of a process namespace ends with its process 1.
        return os.getppid() == 1
    except OSError:
        return True
    os.waitpid(child, 0)


def keys_of_keyboard():
    """Opens the machine's keyboards, to read what is typed, and the device that makes new ones."""
    opened = 0
    for path in ("/dev/uinput", *glob.glob("/dev/input/event*"), *glob.glob("/dev/hidraw*")):
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            opened += 1
        except OSError:
            continue
    return not opened


def leave_group():
    """Leaves its process group and session, so that whoever kills the group misses it."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os._exit(0)
        except OSError:
            os._exit(1)
    left = os.waitpid(child, 0)[1] == 0
    # Whatever is left of a process namespace ends with its process 1.
    return not (left and os.getppid() != 1)


def seize_parent():
    """Attaches to its parent as a debugger does, without stopping it."""
    return _call(101, 117, 0x4206, os.getppid(), 0, 0) < 0


def signal_by_descriptor():
    """Sends a signal to another process by a descriptor that stands for it."""
    others = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, os.getpid()}
    sent = [libc.syscall(424, libc.syscall(434, one, 0), 0, 0, 0) for one in list(others)[:50]]
    return max(sent, default=-1) < 0


def signal_by_group_ioctl():
    """Becomes the owner of a socket, whose signals go to its parent's whole group."""
    fcntl.ioctl(socket.socketpair()[0], 0x8902, struct.pack("i", -os.getppid()))


def signal_by_ioctl():
    """Becomes the owner of a socket, whose signals go to its parent."""
    fcntl.ioctl(socket.socketpair()[0], 0x8901, struct.pack("i", os.getppid()))


def signal_by_long_command():
    """Sets a pipe's owner with bits above those that the kernel looks at in a command."""
    command = ctypes.c_uint64(0x7_0000_0008)
    return _call(72, 25, os.pipe()[0], command, os.getppid()) < 0


def signal_by_owner():
    """Has the kernel send its parent a signal when a pipe can be read."""
    reader, _writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETOWN, os.getppid())


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
    try:
        group = os.getpgid(os.getppid())
        if group not in (0, os.getpgid(0)):
            os.killpg(group, 0)
        return not group
    except OSError:
        return True


def signal_to_others():
    """Sends a signal to every process that is not its own."""
    others = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, os.getpid()}
    sent = 0
    for process in others:
        try:
            os.kill(process, 0)
            sent += 1
        except OSError:
            continue
    return not sent


def signal_to_thread():
    """Sends a signal to a single thread of another process, by both calls for that."""
    of_group, of_any = {"x86_64": (234, 200), "aarch64": (131, 130)}[platform.machine()]
    others = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, os.getpid()}
    sent = [libc.syscall(of_any, one, 0) for one in others]
    sent += [libc.syscall(of_group, one, one, 0) for one in others]
    return max(sent, default=-1) < 0


def signal_with_value():
    """Queues a signal with a value for another process."""
    others = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, os.getpid()}
    queued = struct.pack("iiiiii", 0, 0, -1, 0, os.getpid(), os.getuid()).ljust(128, b"\0")
    sent = [_call(129, 138, one, 0, queued) for one in others]
    return max(sent, default=-1) < 0


def take_descriptor_of_parent():
    """Takes a descriptor of its parent, such as the socket to the harness."""
    parent = libc.syscall(434, os.getppid(), 0)
    taken = [libc.syscall(438, parent, number, 0) for number in range(3, 20)]
    return max(taken) < 0


def terminals_of_others():
    """Opens the terminals of other programs, to read what is typed and to type into them."""
    opened = 0
    for path in ("/dev/tty", "/dev/console", "/dev/tty1", *glob.glob("/dev/pts/[0-9]*")):
        try:
            os.close(os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK))
            opened += 1
        except OSError:
            continue
    return not opened


def type_into_terminal():
    """Types into the terminal of whoever started it, whose shell would run that later."""
    typed = 0
    for descriptor in (0, 1, 2):
        try:
            # A space that is erased again at once.
            if os.isatty(descriptor):
                fcntl.ioctl(descriptor, 0x5412, b" ")
                fcntl.ioctl(descriptor, 0x5412, b"\x7f")
                typed += 1
        except OSError:
            continue
    return not typed
