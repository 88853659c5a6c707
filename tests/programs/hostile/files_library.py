"""Hostile programs: each function is run alone, and returns whether what it tries was refused."""

import ctypes
import fcntl
import os
import platform
import signal
import struct

libc = ctypes.CDLL(None, use_errno=True)


def attribute_of_library():
    """Adds an attribute to a file outside its folder."""
    os.setxattr(os.__file__, "user.hostile", b"")
    os.removexattr(os.__file__, "user.hostile")


def attributes_of_library_in_full():
    """Sets the attributes of a file outside its folder, by the call that names them all."""
    attributes = ctypes.create_string_buffer(24)
    path = os.__file__.encode()
    libc.syscall(468, -100, path, attributes, 24, 0)
    return libc.syscall(469, -100, path, attributes, 24, 0) < 0


def cut_library():
    """Cuts a file outside its folder, to the size that it has."""
    os.truncate(os.__file__, os.path.getsize(os.__file__))


def flags_of_library():
    """Sets the flags of a file outside its folder, one of which makes it unchangeable."""
    with open(os.__file__, "rb") as file:
        flags = fcntl.ioctl(file, 0x80086601, bytes(8))
        fcntl.ioctl(file, 0x40086602, flags)


def hint_of_library():
    """Says how long what is in a file of the machine will last, which changes how disks keep it."""
    with open(os.__file__, "rb") as file:
        fcntl.fcntl(file, 1036, struct.pack("Q", 0))


def lease_on_library():
    """Takes a lease on a file of the machine, so that others who open it to write have to wait."""
    with open(os.__file__, "rb") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def lock_library():
    """Locks a file of the machine, so that others who lock it have to wait."""
    with open(os.__file__, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def mode_of_device():
    """Sets the mode of a device that all programs of the machine write to."""
    changed = 0
    for device in ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"):
        try:
            os.chmod(device, os.stat(device).st_mode & 0o7777)
            changed += 1
        except OSError:
            continue
    return not changed


def mode_of_library():
    """Sets the mode of a file outside its folder."""
    os.chmod(os.__file__, os.stat(os.__file__).st_mode & 0o7777)


def owner_of_library():
    """Sets the owner of a file outside its folder."""
    os.chown(os.__file__, os.stat(os.__file__).st_uid, os.stat(os.__file__).st_gid)


def read_lock_on_library():
    """Locks a part of a file of the machine for reading, so that others wait who lock it to
    write."""
    with open(os.__file__, "rb") as file:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1)


def read_lock_that_is_passed_on():
    """Locks a part of a file of the machine for all who get the descriptor, and waits for it."""
    locks = 0
    for command in (37, 38, fcntl.F_SETLKW):
        try:
            with open(os.__file__, "rb") as file:
                fcntl.fcntl(file, command, struct.pack("hhqqi", fcntl.F_RDLCK, 0, 0, 1, 0))
            locks += 1
        except OSError:
            continue
    return not locks


def standard_library():
    """Opens a module of the standard library to change it."""
    open(os.__file__, "r+b").close()


def times_of_library():
    """Sets the times of a file outside its folder, by which Python trusts compiled modules."""
    before = os.stat(os.__file__)
    os.utime(os.__file__, ns=(before.st_atime_ns, before.st_mtime_ns))


def version_of_library():
    """Sets the version of a file outside its folder, by which network file systems know it."""
    with open(os.__file__, "rb") as file:
        version = fcntl.ioctl(file, 0x80087601, bytes(8))
        fcntl.ioctl(file, 0x40087602, version)


def watch_by_fanotify():
    """Watches what the machine opens by fanotify, which needs no privileges for a folder."""
    begin, mark = {"x86_64": (300, 301), "aarch64": (262, 263)}[platform.machine()]
    watches = libc.syscall(begin, 0x200, 0)
    opened_or_read = ctypes.c_uint64(0x20 | 0x1 | 0x08000000)
    marked = libc.syscall(mark, watches, 1, opened_or_read, -100, b"/usr/bin")
    return watches < 0 or marked < 0


def watch_by_inotify():
    """Watches which programs and modules the rest of the machine opens."""
    watches = libc.inotify_init1(0)
    folders = ("/usr/bin", os.path.dirname(os.__file__))
    watching = [libc.inotify_add_watch(watches, os.fsencode(folder), 0x20) for folder in folders]
    return max(watching) < 0


def watch_by_signal():
    """Has the kernel signal it when the rest of the machine reads a folder."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    fcntl.fcntl(os.open("/usr/bin", os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS)
