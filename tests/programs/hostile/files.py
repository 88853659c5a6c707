"""Hostile programs: each function is run alone, and returns whether what it tries was refused."""

import ctypes
import fcntl
import glob
import importlib.util
import os
import re
import signal
import stat
import struct
import sys
import sysconfig
from pathlib import Path

from _shared import _call, _lines, _make_in, _no_call, _none, _none_opens, _none_succeeds, libc

LIBRARY = os.__file__
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def _in_homes(*names):
    return [f"{home}/{name}" for home in ("/root", *glob.glob("/home/*")) for name in names]


def change_files():
    """Sets the size, mode, owner, times, attributes, flags or version of a file outside its
    folder, or the mode of a device, each to what it is; cuts a device as it opens it to read."""
    before, file = os.stat(LIBRARY), os.open(LIBRARY, os.O_RDONLY)
    attributes = (-100, LIBRARY.encode(), ctypes.create_string_buffer(24), 24, 0)
    refused = _no_call((468, 468, *attributes), (469, 469, *attributes))  # file_setattr
    return refused and _none_succeeds(
        lambda: os.truncate(LIBRARY, before.st_size),
        lambda: os.chmod(LIBRARY, before.st_mode & 0o7777),
        lambda: os.chown(LIBRARY, before.st_uid, before.st_gid),
        lambda: os.utime(LIBRARY, ns=(before.st_atime_ns, before.st_mtime_ns)),
        lambda: (os.setxattr(LIBRARY, "user.x", b""), os.removexattr(LIBRARY, "user.x")),
        lambda: fcntl.ioctl(file, 0x40086602, fcntl.ioctl(file, 0x80086601, bytes(8))),
        lambda: fcntl.ioctl(file, 0x40087602, fcntl.ioctl(file, 0x80087601, bytes(8))),
        *(lambda path=path: os.chmod(path, os.stat(path).st_mode & 0o7777) for path in DEVICES),
        lambda: os.open("/dev/null", os.O_RDONLY | os.O_TRUNC),
    )


def code_of_others():
    """Opens what other programs run, to change it: a module, its compiled form, which Python
    trusts without a look at the source, and the list of libraries that every program loads."""
    bytecode = importlib.util.cache_from_source(LIBRARY)
    return _none_opens(os.O_RDWR, LIBRARY, bytecode, "/etc/ld.so.cache")


def devices():
    """Makes a device that is the machine's memory; opens its memory, its kernel's, and its disks
    past their file systems."""
    paths = [f"/dev/{line.split()[3]}" for line in _lines("/proc/partitions")[2:]]
    return _none_opens(
        os.O_RDONLY, "/dev/mem", "/dev/port", "/dev/kmem", "/proc/kcore", *paths
    ) and _none_succeeds(
        lambda: (
            os.mknod("device", stat.S_IFCHR | 0o600, os.makedev(1, 1)),
            os.open("device", os.O_RDONLY),
        )
    )


def files_that_last():
    """Makes files, with names and without, where others run them, or that even a restart does not
    remove: among Python's packages and jobs to run later, in users' homes and elsewhere."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    jobs = ("/etc/cron.d", "/var/spool/cron", "/etc/profile.d", "/etc/systemd/system")
    others = ("/", "/usr", "/home", "/var/tmp", "/var/lib", "/opt", "/srv")
    folders = (*map(sysconfig.get_path, kinds), *jobs, *others, *_in_homes(""))
    return _none(_make_in, folders) and _none_opens(os.O_TMPFILE | os.O_RDWR, *folders)


def fill_disk():
    """Writes more in several files than the limit allows for all of them together."""
    for name in ("first", "second"):
        with open(name, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 12 * 2**20)


def folder_of_temporary_files():
    """Leaves a file in the machine's /tmp, moves its folder there, where its removal misses it,
    and looks into others, such as those of programs that run beside it."""
    space = os.statvfs("/tmp")
    if space.f_blocks * space.f_frsize <= 2**26:  # as large as its own may fill
        return True
    folder, other = os.getcwd(), f"/tmp/hostile-{os.getpid()}"
    others = {*glob.glob("/tmp/*")} - {folder}
    return _none_opens(os.O_RDONLY | os.O_NONBLOCK, *others) and _none_succeeds(
        lambda: _make_in("/tmp"), lambda: (os.rename(folder, other), os.rename(other, folder))
    )


def folders_of_machine():
    """Lists folders that a machine has and no program needs."""
    folders = ("/var", "/var/lib", "/boot", "/opt", "/srv", "/mnt", "/home", "/sys", "/run")
    return _none(lambda folder: len(os.listdir(folder)) > 0, folders)


def harness():
    """Reads the checkout that its parent's command line names, lists what is beside the code that
    contains it, and opens that to change it."""
    named = re.findall(r"/[\w./-]+", " ".join(_lines(f"/proc/{os.getppid()}/cmdline")))
    folders = {folder for path in map(Path, named) for folder in (path, *path.parents)}
    code = [path for folder in folders for path in glob.glob(f"{folder}/child")]
    return (
        _none_opens(os.O_RDONLY, *(folder / ".git" / "HEAD" for folder in folders))
        and _none_opens(os.O_RDWR, *(f"{path}/main.py" for path in code))
        and _none(lambda path: len(os.listdir(f"{path}/..")) > 1, code)
    )


def hold_files():
    """Locks a file of the machine in all ways, also for all who get the descriptor, or takes a
    lease on it, so that others have to wait; says how long its content will last."""
    file = os.open(LIBRARY, os.O_RDONLY)
    lock = struct.pack("hhqqi", fcntl.F_RDLCK, 0, 0, 1, 0)
    return _none_succeeds(
        lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB),
        lambda: fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1),
        *(lambda way=way: fcntl.fcntl(file, way, lock) for way in (37, 38, fcntl.F_SETLKW)),
        lambda: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK),
        lambda: fcntl.fcntl(file, 1036, struct.pack("Q", 0)),
    )


def inherited_descriptors():
    """Looks for descriptors that its parent left open, to reach files and sockets by them."""
    program = os.path.abspath(sys.argv[0])
    return _none(lambda number: os.readlink(f"/proc/self/fd/{number}") != program, range(3, 128))


def secrets():
    """Opens the hashes of passwords, every user's keys, tokens, history and settings, the machine's
    logs, and what names it."""
    names = (".ssh", ".gnupg", ".netrc", ".npmrc", ".pypirc", ".git-credentials", ".gitconfig")
    names += (".docker/config.json", ".aws/credentials", ".config/gh/hosts.yml")
    names += (".cache/huggingface/token", ".bash_history", ".python_history", ".bashrc", ".profile")
    paths = ("/etc/shadow", "/etc/hostname", "/etc/machine-id", "/etc/hosts")
    logs = glob.glob("/var/log/**", recursive=True)
    paths += ("/sys/class/dmi/id/product_uuid", "/var/log", *logs)
    return _none_opens(os.O_RDONLY, *paths, *_in_homes(*names))


def setuid_file():
    """Makes a program that gives its owner's rights to whoever runs it, where that counts."""
    with open("program", "wb") as file:
        os.fchmod(file.fileno(), 0o4755)
    ignored = os.statvfs("program").f_flag & os.ST_NOSUID
    return bool(ignored) or not os.stat("program").st_mode & 0o4000


def size_of_secrets():
    """Asks how large files are that it must not read, and when they last changed."""
    return _none(os.stat, ("/etc/shadow", "/var/log", "/boot", "/sys"))


def watch_files():
    """Watches which files the machine opens, by fanotify, by inotify and by signals."""
    marks, watches = _call(300, 262, 0x200, 0), libc.inotify_init1(0)
    opened_or_read = ctypes.c_uint64(0x20 | 0x1 | 0x08000000)
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    return _none_succeeds(
        lambda: _call(301, 263, marks, 1, opened_or_read, -100, b"/usr/bin") >= 0,
        lambda: libc.inotify_add_watch(watches, b"/usr/bin", 0x20) >= 0,
        lambda: libc.inotify_add_watch(watches, os.path.dirname(LIBRARY).encode(), 0x20) >= 0,
        lambda: fcntl.fcntl(os.open("/usr/bin", os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS),
    )


def ways_out_of_folder():
    """Reaches the machine's files by its parent's root and folder, by a descriptor that stands for
    a folder only, by a symbolic link, and by a second name for them in its own folder."""
    parent = f"/proc/{os.getppid()}"
    beneath = os.O_RDONLY | os.O_DIRECTORY
    return _none_succeeds(
        lambda: os.listdir(f"{parent}/root/"),
        lambda: os.listdir(f"{parent}/cwd/"),
        lambda: os.open("log", beneath, dir_fd=os.open("/var", os.O_PATH | os.O_DIRECTORY)),
        lambda: (os.symlink("/var", "out"), _make_in("out/tmp")),
        lambda: os.link(LIBRARY, "library"),
        lambda: os.link("/usr/bin/env", "program"),
        lambda: os.link("/etc/hostname", "name"),
    )


def write_input():
    """Opens its standard input, a file of the machine, to write to it, and first makes it
    writable."""
    mode = os.fstat(0).st_mode
    return _none_succeeds(
        lambda: os.open("/proc/self/fd/0", os.O_RDWR),
        lambda: stat.S_ISREG(mode) and os.fchmod(0, stat.S_IMODE(mode) | 0o200),
    )
