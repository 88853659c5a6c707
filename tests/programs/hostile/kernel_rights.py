"""Hostile programs: each function is run alone, and returns whether what it tries was refused."""

import ctypes
import fcntl
import glob
import os
import platform
import socket
import struct
import subprocess

libc = ctypes.CDLL(None, use_errno=True)


def _call(number_on_x86_64, number_on_aarch64, *arguments):
    numbers = {"x86_64": number_on_x86_64, "aarch64": number_on_aarch64}
    return libc.syscall(numbers[platform.machine()], *arguments)


def add_key():
    """Adds a key to the user's keyring."""
    number = {"x86_64": 248, "aarch64": 217}[platform.machine()]
    return ctypes.CDLL(None).syscall(number, b"user", b"k", b"v", 1, -4) < 0


def attributes_of_mount():
    """Sets the attributes of a mount, to what they may well be."""
    no_change = struct.pack("4Q", 0, 0, 0, 0)
    return libc.syscall(442, -100, b"/", 0, no_change, 32) < 0


def become_another_user():
    """Becomes another user: root, or as root one of the others."""
    os.setuid(0 if os.getuid() else 1)


def capabilities_of_new_program():
    """Starts a program, which has all capabilities if its user is root or the file says so."""
    script = ["cat", "/proc/self/status"]
    status = subprocess.run(script, capture_output=True, text=True, check=False).stdout
    rows = [line.split() for line in status.splitlines()]
    effective = next((row[1] for row in rows if row[0] == "CapEff:"), "0")
    return not (int(effective, 16))


def change_root():
    """Makes its folder the root, from where a well-known way leads out of any root."""
    os.chroot(".")


def copy_of_mounts():
    """Copies the tree of mounts, without what was mounted over it or with other attributes."""
    copied = [libc.syscall(428, -100, b"/", flags) for flags in (1, 1 | 0x8000)]
    return max(copied) < 0


def exchange_root():
    """Exchanges the root in a user namespace of its own, to see what is below it."""
    os.mkdir("root")
    child = os.fork()
    if child == 0:
        failed = libc.unshare(0x10000000 | 0x20000) < 0
        failed = failed or libc.mount(b"none", b"root", b"tmpfs", 0, None) < 0
        os._exit(failed or _call(155, 41, b"root", b"root") < 0)
    status = os.waitpid(child, 0)[1]
    os.rmdir("root")
    return status


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
    listener = _call(317, 277, 1, 8, struct.pack("HP", 1, ctypes.addressof(line)))
    return listener < 0


def join_groups():
    """Joins all groups of users that have special rights, such as those for disks."""
    os.setgroups([4, 6, 15, 27, 42])


def join_keyring():
    """Joins a keyring of the session."""
    return _call(250, 219, 1, 0, 0, 0, 0) < 0


def join_namespaces():
    """Joins the namespaces of every process that it can name."""
    child = os.fork()
    if child == 0:
        joined = 0
        for path in glob.glob("/proc/[0-9]*/ns/[mnu][enst][trs]*"):
            try:
                joined += libc.setns(os.open(path, os.O_RDONLY), 0) == 0
            except OSError:
                continue
        os._exit(not joined)
    return os.waitpid(child, 0)[1]


def join_namespaces_of_parent():
    """Joins all namespaces of its parent at once, by a descriptor that stands for it."""
    parent = libc.syscall(434, os.getppid(), 0)
    joined = [libc.setns(parent, kind) for kind in (0x40000000, 0x4000000, 0x8000000, 0x20000)]
    return max(joined) < 0


def keep_capabilities():
    """Sets what root's user number is worth, to what that is."""
    return libc.prctl(28, libc.prctl(27, 0, 0, 0, 0), 0, 0, 0) < 0


def key_of_persistence():
    """Gets the keyring of its user that outlives all sessions."""
    return _call(250, 219, 22, os.getuid(), -2, 0, 0) < 0


def keys_of_others():
    """Lists the keys of other users, by the kernel's list of those that the program may see."""
    read = 0
    try:
        owners = [line.split()[5] for line in open("/proc/keys").read().splitlines()]
        read += any(owner != str(os.getuid()) for owner in owners)
    except OSError:
        read += 0
    return not read


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
    mounted = libc.mount(b"none", b"mounted", b"tmpfs", 0, None) == 0
    if mounted:
        libc.umount2(b"mounted", 2)
    os.rmdir("mounted")
    return not mounted


def mount_in_steps():
    """Makes a file system by the newer calls, which mount it nowhere."""
    system = libc.syscall(430, b"tmpfs", 0)
    failed = system < 0 or libc.syscall(431, system, 6, 0, 0, 0) < 0
    return failed or libc.syscall(432, system, 0, 0) < 0


def mount_in_user_namespace():
    """Mounts a folder over another in a user namespace of its own, by which it hides files."""
    child = os.fork()
    if child == 0:
        failed = libc.unshare(0x10000000 | 0x20000) < 0
        os._exit(failed or libc.mount(b"/usr", b"/tmp", None, 4096 | 16384, None) < 0)
    return os.waitpid(child, 0)[1]


def network_in_user_namespace():
    """Makes a network in a user namespace of its own and configures it, as root does."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000 | 0x40000000) < 0:
        raise OSError("no namespaces")
    ours, _ = socket.socketpair()
    device = fcntl.ioctl(ours, 0x8913, b"lo".ljust(40, b"\0"))
    fcntl.ioctl(ours, 0x8914, device[:16] + b"\x49" + device[17:])


def other_namespaces():
    """Makes namespaces other than a user's: of mounts, names, network, processes, and so on."""
    made = 0
    for kind in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x20000000, 0x40000000, 0x80):
        child = os.fork()
        if child == 0:
            os._exit(libc.unshare(kind) < 0)
        made += os.waitpid(child, 0)[1] == 0
    return not made


def process_in_user_namespace():
    """Makes a process that starts in a user namespace of its own, with all privileges there."""
    child = _call(56, 220, 0x10000000 | 17, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    if child > 0:
        os.waitpid(child, 0)
    return child < 0


def request_key():
    """Asks for a key of the user."""
    number = {"x86_64": 249, "aarch64": 218}[platform.machine()]
    return ctypes.CDLL(None).syscall(number, b"user", b"k", 0, -4) < 0


def rights_of_setuid_programs():
    """Looks for programs that give root's rights, and whether they would give them to it."""
    usable = 0
    for path in glob.glob("/usr/bin/*"):
        if os.path.isfile(path) and os.stat(path).st_mode & 0o4000:
            usable += not os.statvfs(path).f_flag & os.ST_NOSUID
    allowed = "NoNewPrivs:\t0" in open("/proc/self/status").read()
    return not (usable and allowed)


def root_of_user_namespace():
    """Becomes root in a user namespace of its own, as containers without privileges do."""
    user = os.getuid()
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000) < 0:
        raise OSError("no namespace")
    open("/proc/self/uid_map", "w").write(f"0 {user} 1")


def take_capabilities():
    """Takes all capabilities there are."""
    header = struct.pack("Ii", 0x20080522, 0)
    wanted = struct.pack("6I", 1 << 21, 1 << 21, 0, 0, 0, 0)
    return _call(126, 91, header, wanted) < 0


def uncover_mounts():
    """Unmounts what covers other files, in a user namespace of its own."""
    child = os.fork()
    if child == 0:
        failed = libc.unshare(0x10000000 | 0x20000) < 0
        os._exit(failed or libc.umount2(b"/tmp", 2) < 0)
    return os.waitpid(child, 0)[1]


def user_namespace():
    """Makes a user namespace, in which it has all privileges."""
    return ctypes.CDLL(None, use_errno=True).unshare(0x10000000) < 0


def writable_mount():
    """Makes files writable again that are mounted to be read, in a user namespace of its own."""
    child = os.fork()
    if child == 0:
        failed = libc.unshare(0x10000000 | 0x20000) < 0
        failed = failed or libc.mount(None, b"/usr", None, 4096 | 32, None) < 0
        os._exit(failed or not os.access("/usr", os.W_OK))
    return os.waitpid(child, 0)[1]
