"""Hostile programs: each function is run alone, and returns whether what it tries was refused."""

import ctypes
import fcntl
import glob
import importlib.util
import os
import platform
import signal
import stat
import struct
import sys
import sysconfig
from pathlib import Path

from _shared import _make_in, _none, _none_opens, libc


def _list(folder):
    return len(os.listdir(folder)) > 0


def _in_homes(*names):
    return [f"{home}/{name}" for home in ("/root", *glob.glob("/home/*")) for name in names]


def _temporary_folder_is_private():
    space = os.statvfs("/tmp")
    return space.f_blocks * space.f_frsize <= 2**26  # as large as it may fill


def _named_by_parent(ending=""):
    words = open(f"/proc/{os.getppid()}/cmdline", "rb").read().decode().split("\0")
    return [word for word in words if word.startswith("/") and word.endswith(ending)]


def _library():
    return os.open(os.__file__, os.O_RDONLY)


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
    file = _library()
    fcntl.ioctl(file, 0x40086602, fcntl.ioctl(file, 0x80086601, bytes(8)))


def hint_of_library():
    """Says how long what is in a file of the machine will last, which changes how disks keep it."""
    fcntl.fcntl(_library(), 1036, struct.pack("Q", 0))


def lease_on_library():
    """Takes a lease on a file of the machine, so that others who open it to write have to wait."""
    fcntl.fcntl(_library(), fcntl.F_SETLEASE, fcntl.F_RDLCK)


def lock_library():
    """Locks a file of the machine, so that others who lock it have to wait."""
    fcntl.flock(_library(), fcntl.LOCK_EX | fcntl.LOCK_NB)


def mode_of_device():
    """Sets the mode of a device that all programs of the machine write to."""
    devices = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
    return _none(lambda path: os.chmod(path, os.stat(path).st_mode & 0o7777), devices)


def mode_of_library():
    """Sets the mode of a file outside its folder."""
    os.chmod(os.__file__, os.stat(os.__file__).st_mode & 0o7777)


def owner_of_library():
    """Sets the owner of a file outside its folder."""
    os.chown(os.__file__, os.stat(os.__file__).st_uid, os.stat(os.__file__).st_gid)


def read_lock_on_library():
    """Locks a part of a file of the machine for reading, so that others wait who lock it to
    write."""
    fcntl.lockf(_library(), fcntl.LOCK_SH | fcntl.LOCK_NB, 1)


def read_lock_that_is_passed_on():
    """Locks a part of a file of the machine for all who get the descriptor, and waits for it."""
    lock = struct.pack("hhqqi", fcntl.F_RDLCK, 0, 0, 1, 0)
    return _none(lambda way: fcntl.fcntl(_library(), way, lock), (37, 38, fcntl.F_SETLKW))


def standard_library():
    """Opens a module of the standard library to change it."""
    os.open(os.__file__, os.O_RDWR)


def times_of_library():
    """Sets the times of a file outside its folder, by which Python trusts compiled modules."""
    before = os.stat(os.__file__)
    os.utime(os.__file__, ns=(before.st_atime_ns, before.st_mtime_ns))


def version_of_library():
    """Sets the version of a file outside its folder, by which network file systems know it."""
    file = _library()
    fcntl.ioctl(file, 0x40087602, fcntl.ioctl(file, 0x80087601, bytes(8)))


def watch_by_fanotify():
    """Watches what the machine opens by fanotify, which needs no privileges for a folder."""
    begin, mark = {"x86_64": (300, 301), "aarch64": (262, 263)}[platform.machine()]
    watches = libc.syscall(begin, 0x200, 0)
    opened_or_read = ctypes.c_uint64(0x20 | 0x1 | 0x08000000)
    return watches < 0 or libc.syscall(mark, watches, 1, opened_or_read, -100, b"/usr/bin") < 0


def watch_by_inotify():
    """Watches which programs and modules the rest of the machine opens."""
    watches = libc.inotify_init1(0)
    folders = (b"/usr/bin", os.path.dirname(os.__file__).encode())
    return _none(lambda path: libc.inotify_add_watch(watches, path, 0x20) >= 0, folders)


def watch_by_signal():
    """Has the kernel signal it when the rest of the machine reads a folder."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    fcntl.fcntl(os.open("/usr/bin", os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS)


def bytecode():
    """Opens the compiled form of a module, which Python trusts without a look at the source."""
    os.open(importlib.util.cache_from_source(os.__file__), os.O_RDWR)


def cache_of_loader():
    """Opens the list of libraries that every program loads, to change it."""
    os.open("/etc/ld.so.cache", os.O_RDWR)


def checkout_of_harness():
    """Reads the history of the checkout that its parent's command line names."""
    folders = {folder for path in _named_by_parent() for folder in Path(path).parents}
    return _none_opens(os.O_RDONLY, *(folder / ".git" / "HEAD" for folder in folders))


def cut_by_reading():
    """Opens a file to read it and to cut it at once; a device, which that does nothing to."""
    os.open("/dev/null", os.O_RDONLY | os.O_TRUNC)


def descriptor_of_a_path():
    """Gets a descriptor that stands for a folder only, and opens what is in it by that."""
    folder = os.open("/var", os.O_PATH | os.O_DIRECTORY)
    os.listdir(os.open("log", os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder))


def disk_of_machine():
    """Opens the machine's disks past their file systems."""
    rows = [line.split() for line in open("/proc/partitions").readlines()[2:]]
    return _none_opens(os.O_RDONLY, *(f"/dev/{row[3]}" for row in rows))


def fill_disk():
    """Writes more in several files than the limit allows for all of them together."""
    for name in ("first", "second"):
        with open(name, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 12 * 2**20)


def folder_left_behind():
    """Moves its folder to another place in the machine's /tmp, where its removal misses it."""
    folder, other = os.getcwd(), f"/tmp/hostile-{os.getpid()}"
    os.rename(folder, other)
    os.rename(other, folder)
    return _temporary_folder_is_private()


def folders_of_machine():
    """Lists folders that a machine has and no program needs."""
    folders = ("/var", "/var/lib", "/boot", "/opt", "/srv", "/mnt", "/home", "/sys", "/run")
    return _none(_list, folders)


def folders_of_neighbours():
    """Looks into the other folders in /tmp, such as those of programs that run beside it."""
    others = {*glob.glob("/tmp/*")} - {os.getcwd()}
    opened = not (_none(os.listdir, others) and _none(lambda path: open(path).close(), others))
    return _temporary_folder_is_private() or not opened


def hard_link():
    """Gives a file of the machine a second name in its own folder."""
    paths = (os.__file__, "/etc/hostname", "/usr/bin/env", "/var/lib/dpkg/status")
    return _none(lambda path: os.link(path, "second-name"), paths)


def history_of_users():
    """Opens what every user's shell keeps and runs: its history and its settings."""
    names = (".bash_history", ".python_history", ".bashrc", ".profile", ".gitconfig")
    return _none_opens(os.O_RDONLY, *_in_homes(*names))


def inherited_descriptors():
    """Looks for descriptors that its parent left open, to reach files and sockets by them."""
    program = os.path.abspath(sys.argv[0])
    return _none(lambda number: os.readlink(f"/proc/self/fd/{number}") != program, range(3, 128))


def input_made_writable():
    """Makes its standard input, a file of the machine, writable, and opens it again to write."""
    mode = os.fstat(0).st_mode
    if not stat.S_ISREG(mode):
        raise OSError("it is no file")
    os.fchmod(0, stat.S_IMODE(mode) | 0o200)
    open("/proc/self/fd/0", "r+b")


def installed_packages():
    """Adds a module to Python's installation, which every later run would import."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    return _none(_make_in, map(sysconfig.get_path, kinds))


def job_for_later():
    """Makes a file where the machine looks for jobs to run later, or at the next login."""
    folders = ("/etc/cron.d", "/var/spool/cron", "/etc/profile.d", "/etc/systemd/system")
    return _none(_make_in, folders)


def keys_of_users():
    """Lists the keys for SSH and GnuPG in every user's home."""
    return _none(os.listdir, _in_homes(".ssh", ".gnupg"))


def lasting_file():
    """Leaves a file in a folder that even a restart does not empty."""
    return _none(_make_in, ("/var/tmp", "/var/lib", "/opt", "/srv", "/"))


def link_out_of_folder():
    """Writes outside its folder by way of a symbolic link in it."""
    os.symlink("/var", "out")
    _make_in("out/tmp")


def logs_of_machine():
    """Opens a file of the machine's logs."""
    return _none(lambda path: open(path, "rb").close(), glob.iglob("/var/log/**", recursive=True))


def make_device():
    """Makes a device of its own that is the machine's memory, and opens it."""
    os.mknod("device", stat.S_IFCHR | 0o600, os.makedev(1, 1))
    os.open("device", os.O_RDONLY)


def memory_of_machine():
    """Opens the machine's memory and its kernel's as files."""
    return _none_opens(os.O_RDONLY, "/dev/mem", "/dev/port", "/dev/kmem", "/proc/kcore")


def name_of_machine():
    """Reads by what names the machine is known."""
    files = ("/etc/hostname", "/etc/machine-id", "/etc/hosts", "/sys/class/dmi/id/product_uuid")
    return _none(lambda file: len(Path(file).read_bytes()) > 0, files)


def neighbours_of_source():
    """Lists the folder of the program that contains it, which has the rest of the harness."""
    folders = map(os.path.dirname, _named_by_parent(".py"))
    return _none(lambda folder: len(os.listdir(folder)) > 1, folders)


def passwords():
    """Reads the hashes of the users' passwords."""
    open("/etc/shadow", "rb").read()


def root_of_parent():
    """Takes its parent's root and folder as a way out of its own."""
    return _none(_list, (f"/proc/{os.getppid()}/root/", f"/proc/{os.getppid()}/cwd/"))


def setuid_file():
    """Makes a program that gives its owner's rights to whoever runs it, where that counts."""
    with open("program", "wb") as file:
        os.fchmod(file.fileno(), 0o4755)
    ignored = os.statvfs("program").f_flag & os.ST_NOSUID
    return bool(ignored) or not os.stat("program").st_mode & 0o4000


def size_of_secrets():
    """Asks how large files are that it must not read, and when they last changed."""
    return _none(os.stat, ("/etc/shadow", "/var/log", "/boot", "/sys"))


def source_of_harness():
    """Opens the program that contains it, as its parent's command line names it, to change it."""
    return _none_opens(os.O_RDWR, *_named_by_parent(".py"))


def temporary_file_of_machine():
    """Leaves a file in the machine's /tmp, where others may trust it."""
    _make_in("/tmp")
    return _temporary_folder_is_private()


def tokens_of_users():
    """Opens files with tokens and passwords for services in every user's home."""
    names = (".netrc", ".npmrc", ".pypirc", ".git-credentials", ".docker/config.json")
    names += (".aws/credentials", ".cache/huggingface/token", ".config/gh/hosts.yml")
    return _none_opens(os.O_RDONLY, *_in_homes(*names))


def unnamed_file():
    """Makes files without a name outside its folder, which no list shows."""
    folders = ("/", "/var/tmp", "/root", "/home", "/usr", os.path.dirname(os.__file__))
    return _none_opens(os.O_TMPFILE | os.O_RDWR, *folders)


def write_into_homes():
    """Makes a file in every user's home."""
    return _none(_make_in, _in_homes(""))


def write_own_input():
    """Opens its standard input to write to it."""
    os.open("/proc/self/fd/0", os.O_RDWR)
