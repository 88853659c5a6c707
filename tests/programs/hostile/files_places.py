"""Hostile programs: each function is run alone, and returns whether what it tries was refused."""

import glob
import importlib.util
import os
import stat
import sys
import sysconfig
from pathlib import Path


def bytecode():
    """Opens the compiled form of a module, which Python trusts without a look at the source."""
    open(importlib.util.cache_from_source(os.__file__), "r+b").close()


def cache_of_loader():
    """Opens the list of libraries that every program loads, to change it."""
    open("/etc/ld.so.cache", "r+b").close()


def checkout_of_harness():
    """Reads the history of the checkout that its parent's command line names."""
    words = open(f"/proc/{os.getppid()}/cmdline", "rb").read().decode().split("\0")
    folders = [word for word in words if word.startswith("/")]
    read = 0
    for folder in folders:
        while folder != "/":
            folder = os.path.dirname(folder)
            try:
                open(f"{folder}/.git/HEAD", "rb").close()
                read += 1
            except OSError:
                continue
    return not read


def cut_by_reading():
    """Opens a file to read it and to cut it at once; a device, which that does nothing to."""
    os.close(os.open("/dev/null", os.O_RDONLY | os.O_TRUNC))


def descriptor_of_a_path():
    """Gets a descriptor that stands for a folder only, and opens what is in it by that."""
    folder = os.open("/var", os.O_PATH | os.O_DIRECTORY)
    below = os.open("log", os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
    os.listdir(below)


def disk_of_machine():
    """Opens the machine's disks past their file systems."""
    opened = 0
    for line in open("/proc/partitions").read().splitlines()[2:]:
        try:
            os.close(os.open(f"/dev/{line.split()[3]}", os.O_RDONLY))
            opened += 1
        except OSError:
            continue
    return not opened


def fill_disk():
    """Writes more in several files than the limit allows for all of them together."""
    names = ["first", "second"]
    try:
        for name in names:
            with open(name, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, 12 * 2**20)
        return False
    except OSError:
        return True
    for name in names:
        if os.path.exists(name):
            os.remove(name)


def folder_left_behind():
    """Moves its folder to another place in the machine's /tmp, where its removal misses it."""
    space = os.statvfs("/tmp")
    private = space.f_blocks * space.f_frsize <= 2**26  # a /tmp of its own, as large as it may fill
    folder = os.getcwd()
    try:
        os.rename(folder, f"/tmp/hostile-{os.getpid()}")
        os.rename(f"/tmp/hostile-{os.getpid()}", folder)
        return private
    except OSError:
        return True


def folders_of_machine():
    """Lists folders that a machine has and no program needs."""
    listed = 0
    for folder in ("/var", "/var/lib", "/boot", "/opt", "/srv", "/mnt", "/home", "/sys", "/run"):
        try:
            listed += len(os.listdir(folder)) > 0
        except OSError:
            continue
    return not listed


def folders_of_neighbours():
    """Looks into the other folders in /tmp, such as those of programs that run beside it."""
    space = os.statvfs("/tmp")
    private = space.f_blocks * space.f_frsize <= 2**26  # a /tmp of its own, as large as it may fill
    opened = 0
    for path in [] if private else glob.glob("/tmp/*"):
        if path == os.getcwd():
            continue
        try:
            os.listdir(path) if os.path.isdir(path) else open(path, "rb").close()
            opened += 1
        except OSError:
            continue
    return not opened


def hard_link():
    """Gives a file of the machine a second name in its own folder."""
    linked = 0
    for path in (os.__file__, "/etc/hostname", "/usr/bin/env", "/var/lib/dpkg/status"):
        try:
            os.link(path, "second-name")
            os.remove("second-name")
            linked += 1
        except OSError:
            continue
    return not linked


def history_of_users():
    """Opens what every user's shell keeps and runs: its history and its settings."""
    names = (".bash_history", ".python_history", ".bashrc", ".profile", ".gitconfig")
    opened = 0
    for home in ("/root", *glob.glob("/home/*")):
        for name in names:
            try:
                open(f"{home}/{name}", "rb").close()
                opened += 1
            except OSError:
                continue
    return not opened


def inherited_descriptors():
    """Looks for descriptors that its parent left open, to reach files and sockets by them."""
    named = {}
    for number in range(3, 128):
        try:
            named[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
    own = [number for number, name in named.items() if name == os.path.abspath(sys.argv[0])]
    return not (named.keys() - set(own))


def input_made_writable():
    """Makes its standard input, a file of the machine, writable, and opens it again to write."""
    mode = os.fstat(0).st_mode
    if not stat.S_ISREG(mode):
        raise OSError("it is no file")
    os.fchmod(0, stat.S_IMODE(mode) | 0o200)
    open("/proc/self/fd/0", "r+b")


def installed_packages():
    """Adds a module to Python's installation, which every later run would import."""
    made = 0
    for kind in ("stdlib", "platstdlib", "purelib", "platlib", "scripts"):
        path = f"{sysconfig.get_path(kind)}/hostile_{os.getpid()}.pth-not"
        try:
            open(path, "x").close()
            os.remove(path)
            made += 1
        except OSError:
            continue
    return not made


def job_for_later():
    """Makes a file where the machine looks for jobs to run later, or at the next login."""
    made = 0
    for folder in ("/etc/cron.d", "/var/spool/cron", "/etc/profile.d", "/etc/systemd/system"):
        path = f"{folder}/hostile-{os.getpid()}"
        try:
            open(path, "x").close()
            os.remove(path)
            made += 1
        except OSError:
            continue
    return not made


def keys_of_users():
    """Lists the keys for SSH and GnuPG in every user's home."""
    listed = 0
    for home in ("/root", *glob.glob("/home/*")):
        for folder in (".ssh", ".gnupg"):
            try:
                listed += len(os.listdir(f"{home}/{folder}")) >= 0
            except OSError:
                continue
    return not listed


def lasting_file():
    """Leaves a file in a folder that even a restart does not empty."""
    made = 0
    for folder in ("/var/tmp", "/var/lib", "/opt", "/srv", "/"):
        path = f"{folder}/hostile-{os.getpid()}"
        try:
            open(path, "x").close()
            os.remove(path)
            made += 1
        except OSError:
            continue
    return not made


def link_out_of_folder():
    """Writes outside its folder by way of a symbolic link in it."""
    os.symlink("/var", "out")
    try:
        open(f"out/tmp/hostile-{os.getpid()}", "x").close()
        os.remove(f"out/tmp/hostile-{os.getpid()}")
        return False
    except OSError:
        return True
    os.remove("out")


def logs_of_machine():
    """Opens a file of the machine's logs."""
    opened = 0
    for folder, _, names in os.walk("/var/log"):
        for name in names[:9]:
            try:
                open(f"{folder}/{name}", "rb").close()
                opened += 1
            except OSError:
                continue
    return not opened


def make_device():
    """Makes a device of its own that is the machine's memory, and opens it."""
    try:
        os.mknod("device", stat.S_IFCHR | 0o600, os.makedev(1, 1))
    except OSError:
        return True
    else:
        try:
            os.close(os.open("device", os.O_RDONLY))
            return False
        except OSError:
            return True
        os.remove("device")


def memory_of_machine():
    """Opens the machine's memory and its kernel's as files."""
    opened = 0
    for path in ("/dev/mem", "/dev/port", "/dev/kmem", "/proc/kcore"):
        try:
            os.close(os.open(path, os.O_RDONLY))
            opened += 1
        except OSError:
            continue
    return not opened


def name_of_machine():
    """Reads by what names the machine is known."""
    files = ("/etc/hostname", "/etc/machine-id", "/etc/hosts", "/sys/class/dmi/id/product_uuid")
    read = 0
    for file in files:
        try:
            read += len(Path(file).read_bytes()) > 0
        except OSError:
            continue
    return not read


def neighbours_of_source():
    """Lists the folder of the program that contains it, which has the rest of the harness."""
    words = open(f"/proc/{os.getppid()}/cmdline", "rb").read().decode().split("\0")
    listed = 0
    for word in words:
        if word.startswith("/") and word.endswith(".py"):
            try:
                listed += len(os.listdir(os.path.dirname(word))) > 1
            except OSError:
                continue
    return not listed


def passwords():
    """Reads the hashes of the users' passwords."""
    open("/etc/shadow", "rb").read()


def root_of_parent():
    """Takes its parent's root and folder as a way out of its own."""
    listed = 0
    for name in ("root", "cwd"):
        try:
            listed += len(os.listdir(f"/proc/{os.getppid()}/{name}/")) > 0
        except OSError:
            continue
    return not listed


def setuid_file():
    """Makes a program that gives its owner's rights to whoever runs it, where that counts."""
    with open("program", "wb") as file:
        os.fchmod(file.fileno(), 0o4755)
    kept = os.stat("program").st_mode & 0o4000
    ignored = os.statvfs("program").f_flag & os.ST_NOSUID
    os.remove("program")
    return not (kept and not ignored)


def size_of_secrets():
    """Asks how large files are that it must not read, and when they last changed."""
    asked = 0
    for path in ("/etc/shadow", "/var/log", "/boot", "/sys"):
        try:
            asked += os.stat(path).st_mtime_ns > 0
        except OSError:
            continue
    return not asked


def source_of_harness():
    """Opens the program that contains it, as its parent's command line names it, to change it."""
    words = open(f"/proc/{os.getppid()}/cmdline", "rb").read().decode().split("\0")
    opened = 0
    for word in words:
        if word.startswith("/") and word.endswith(".py"):
            try:
                open(word, "r+b").close()
                opened += 1
            except OSError:
                continue
    return not opened


def temporary_file_of_machine():
    """Leaves a file in the machine's /tmp, where others may trust it."""
    space = os.statvfs("/tmp")
    private = space.f_blocks * space.f_frsize <= 2**26  # a /tmp of its own, as large as it may fill
    path = f"/tmp/hostile-{os.getpid()}"
    try:
        open(path, "x").close()
        os.remove(path)
        return private
    except OSError:
        return True


def tokens_of_users():
    """Opens files with tokens and passwords for services in every user's home."""
    names = (".netrc", ".npmrc", ".pypirc", ".git-credentials", ".docker/config.json")
    names += (".aws/credentials", ".cache/huggingface/token", ".config/gh/hosts.yml")
    opened = 0
    for home in ("/root", *glob.glob("/home/*")):
        for name in names:
            try:
                open(f"{home}/{name}", "rb").close()
                opened += 1
            except OSError:
                continue
    return not opened


def unnamed_file():
    """Makes files without a name outside its folder, which no list shows."""
    made = 0
    for folder in ("/", "/var/tmp", "/root", "/home", "/usr", os.path.dirname(os.__file__)):
        try:
            os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR))
            made += 1
        except OSError:
            continue
    return not made


def write_into_homes():
    """Makes a file in every user's home."""
    made = 0
    for home in ("/root", *glob.glob("/home/*")):
        try:
            open(f"{home}/.hostile-{os.getpid()}", "x").close()
            os.remove(f"{home}/.hostile-{os.getpid()}")
            made += 1
        except OSError:
            continue
    return not made


def write_own_input():
    """Opens its standard input to write to it."""
    open("/proc/self/fd/0", "r+b")
