"""Hostile programs: each function is run alone, and returns whether what it tries was refused."""

import ctypes
import fcntl
import glob
import os
import re
import socket
import struct
import subprocess

from _shared import _call, _fails_in_child, _no_child, _none, libc


def _fails_in_user_namespace(attempt):
    """In one with mounts of its own."""
    return _fails_in_child(lambda: libc.unshare(0x10000000 | 0x20000) == 0 and attempt())


def add_key():
    """Adds a key to the user's keyring."""
    return _call(248, 217, b"user", b"k", b"v", 1, -4) < 0


def attributes_of_mount():
    """Sets the attributes of a mount, to what they may well be."""
    return libc.syscall(442, -100, b"/", 0, bytes(32), 32) < 0


def become_another_user():
    """Becomes another user: root, or as root one of the others."""
    os.setuid(0 if os.getuid() else 1)


def capabilities_of_new_program():
    """Starts a program, which has all capabilities if its user is root or the file says so."""
    script = ["cat", "/proc/self/status"]
    status = subprocess.run(script, capture_output=True, text=True, check=False).stdout
    return not any(int(effective, 16) for effective in re.findall(r"CapEff:\s*(\w+)", status))


def change_root():
    """Makes its folder the root, from where a well-known way leads out of any root."""
    os.chroot(".")


def copy_of_mounts():
    """Copies the tree of mounts, without what was mounted over it or with other attributes."""
    return _none(lambda flags: libc.syscall(428, -100, b"/", flags) >= 0, (1, 1 | 0x8000))


def exchange_root():
    """Exchanges the root in a user namespace of its own, to see what is below it."""
    os.mkdir("root")
    return _fails_in_user_namespace(
        lambda: (
            libc.mount(b"none", b"root", b"tmpfs", 0, None) == 0
            and _call(155, 41, b"root", b"root") == 0
        )
    )


def filter_that_allows():
    """Adds a filter of system calls that allows all, and opens a socket by it."""
    line = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
    libc.prctl(38, 1, 0, 0, 0)
    libc.prctl(22, 2, struct.pack("HP", 1, ctypes.addressof(line)), 0, 0)
    socket.socket(socket.AF_UNIX)


def filter_that_answers():
    """Adds a filter of system calls that asks itself, to allow its own forks."""
    line = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
    libc.prctl(38, 1, 0, 0, 0)
    return _call(317, 277, 1, 8, struct.pack("HP", 1, ctypes.addressof(line))) < 0


def join_groups():
    """Joins all groups of users that have special rights, such as those for disks."""
    os.setgroups([4, 6, 15, 27, 42])


def join_keyring():
    """Joins a keyring of the session."""
    return _call(250, 219, 1, 0, 0, 0, 0) < 0


def join_namespaces():
    """Joins the namespaces of every process that it can name."""
    paths = glob.glob("/proc/[0-9]*/ns/[mnu][enst][trs]*")
    files = (os.open(path, os.O_RDONLY) for path in paths if os.access(path, os.R_OK))
    return _fails_in_child(lambda: not _none(lambda file: libc.setns(file, 0) == 0, files))


def join_namespaces_of_parent():
    """Joins all namespaces of its parent at once, by a descriptor that stands for it."""
    parent = libc.syscall(434, os.getppid(), 0)
    kinds = (0x40000000, 0x4000000, 0x8000000, 0x20000)
    return _none(lambda kind: libc.setns(parent, kind) == 0, kinds)


def keep_capabilities():
    """Sets what root's user number is worth, to what that is."""
    return libc.prctl(28, libc.prctl(27, 0, 0, 0, 0), 0, 0, 0) < 0


def key_of_persistence():
    """Gets the keyring of its user that outlives all sessions."""
    return _call(250, 219, 22, os.getuid(), -2, 0, 0) < 0


def keys_of_others():
    """Lists the keys of other users, by the kernel's list of those that the program may see."""
    return all(line.split()[5] == str(os.getuid()) for line in open("/proc/keys"))


def list_of_mounts():
    """Lists the mounts of the machine by number, and asks for what they are."""
    numbers = ctypes.create_string_buffer(8 * 1000)
    listed = libc.syscall(458, struct.pack("IIQQ", 24, 0, 2**64 - 1, 0), numbers, 1000, 0)
    asked = struct.pack("II16s", 24, 0, numbers[:8] + struct.pack("Q", 1))
    described = libc.syscall(457, asked, ctypes.create_string_buffer(4096), 4096, 0)
    return max(listed, described) < 0


def mount():
    """Mounts a file system over a folder of its own."""
    os.mkdir("mounted")
    failed = libc.mount(b"none", b"mounted", b"tmpfs", 0, None) < 0
    libc.umount2(b"mounted", 2)
    return failed


def mount_in_steps():
    """Makes a file system by the newer calls, which mount it nowhere."""
    system = libc.syscall(430, b"tmpfs", 0)
    failed = system < 0 or libc.syscall(431, system, 6, 0, 0, 0) < 0
    return failed or libc.syscall(432, system, 0, 0) < 0


def mount_in_user_namespace():
    """Mounts a folder over another in a user namespace of its own, by which it hides files."""
    bind_all = 4096 | 16384
    return _fails_in_user_namespace(lambda: libc.mount(b"/usr", b"/tmp", None, bind_all, None) == 0)


def network_in_user_namespace():
    """Makes a network in a user namespace of its own and configures it, as root does."""
    if libc.unshare(0x10000000 | 0x40000000) < 0:
        raise OSError("no namespaces")
    ours, _ = socket.socketpair()
    device = fcntl.ioctl(ours, 0x8913, b"lo".ljust(40, b"\0"))
    fcntl.ioctl(ours, 0x8914, device[:16] + b"\x49" + device[17:])


def other_namespaces():
    """Makes namespaces other than a user's: of mounts, names, network, processes, and so on."""
    kinds = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x20000000, 0x40000000, 0x80)
    return all(_fails_in_child(lambda kind=kind: libc.unshare(kind) == 0) for kind in kinds)


def process_in_user_namespace():
    """Makes a process that starts in a user namespace of its own, with all privileges there."""
    return _no_child(_call(56, 220, 0x10000000 | 17, 0, 0, 0, 0))


def request_key():
    """Asks for a key of the user."""
    return _call(249, 218, b"user", b"k", 0, -4) < 0


def rights_of_setuid_programs():
    """Looks for programs that give root's rights, and whether they would give them to it."""
    paths = [path for path in glob.glob("/usr/bin/*") if os.path.isfile(path)]
    setuid = [path for path in paths if os.stat(path).st_mode & 0o4000]
    usable = [path for path in setuid if not os.statvfs(path).f_flag & os.ST_NOSUID]
    return not usable or "NoNewPrivs:\t0" not in open("/proc/self/status").read()


def root_of_user_namespace():
    """Becomes root in a user namespace of its own, as containers without privileges do."""
    user = os.getuid()
    if libc.unshare(0x10000000) < 0:
        raise OSError("no namespace")
    open("/proc/self/uid_map", "w").write(f"0 {user} 1")


def take_capabilities():
    """Takes all capabilities there are."""
    header = struct.pack("Ii", 0x20080522, 0)
    return _call(126, 91, header, struct.pack("6I", 1 << 21, 1 << 21, 0, 0, 0, 0)) < 0


def uncover_mounts():
    """Unmounts what covers other files, in a user namespace of its own."""
    return _fails_in_user_namespace(lambda: libc.umount2(b"/tmp", 2) == 0)


def user_namespace():
    """Makes a user namespace, in which it has all privileges."""
    return libc.unshare(0x10000000) < 0


def writable_mount():
    """Makes files writable again that are mounted to be read, in a user namespace of its own."""
    return _fails_in_user_namespace(
        lambda: libc.mount(None, b"/usr", None, 4096 | 32, None) == 0 and os.access("/usr", os.W_OK)
    )
