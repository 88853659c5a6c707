"""Hostile programs: each function is run alone, and returns whether what it tries was refused."""

import ctypes
import glob
import os
import platform
import re
import resource

libc = ctypes.CDLL(None, use_errno=True)


def _call(number_on_x86_64, number_on_aarch64, *arguments):
    numbers = {"x86_64": number_on_x86_64, "aarch64": number_on_aarch64}
    return libc.syscall(numbers[platform.machine()], *arguments)


def addresses_of_parent():
    """Reads where what is in its parent's memory, past the randomness of addresses."""
    read = 0
    for name in ("maps", "smaps", "auxv", "pagemap", "stack", "syscall"):
        try:
            read += len(open(f"/proc/{os.getppid()}/{name}", "rb").read(8)) > 0
        except OSError:
            continue
    return not read


def advise_memory_of_parent():
    """Has the kernel push its parent's memory out to the disk."""
    parent = libc.syscall(434, os.getppid(), 0)
    return parent < 0 or libc.syscall(440, parent, 0, 0, 20, 0) < 0


def command_lines_of_others():
    """Lists what else runs on the machine, with all arguments."""
    own = {os.getpid(), os.getppid()}
    read = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in own:
            try:
                read += len(open(f"/proc/{name}/cmdline", "rb").read()) > 0
            except OSError:
                continue
    return not read


def compare_with_parent():
    """Compares its descriptors with its parent's, to learn which they share."""
    compared = [_call(312, 272, os.getpid(), os.getppid(), 0, 0, one) for one in range(10)]
    return max(compared) < 0


def disk_priority_of_parent():
    """Sets the priority with which its parent uses the disk."""
    give, get = {"x86_64": (251, 252), "aarch64": (30, 31)}[platform.machine()]
    now = libc.syscall(get, 1, os.getppid())
    return now < 0 or libc.syscall(give, 1, os.getppid(), now) < 0


def environment_of_ancestors():
    """Reads the environment of its parent's parent, and so on: one of them is the harness."""
    read, process = 0, os.getppid()
    while process > 0:
        try:
            read += len(open(f"/proc/{process}/environ", "rb").read()) > 0
        except OSError:
            read += 0
        status = open(f"/proc/{process}/status").read()
        process = int(re.search(r"PPid:\s*(\d+)", status)[1])
    return not read


def environment_of_others():
    """Reads the environment of every process that is not its own, with the keys in it."""
    read = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                read += len(open(f"/proc/{name}/environ", "rb").read()) > 0
            except OSError:
                continue
    return not read


def environment_of_parent():
    """Reads its parent's environment."""
    open(f"/proc/{os.getppid()}/environ", "rb").read()


def files_of_others():
    """Finds which files other processes have open, and opens them too."""
    opened = 0
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if int(path.split("/")[2]) != os.getpid() and os.path.isfile(os.readlink(path)):
                os.close(os.open(path, os.O_RDONLY))
                opened += 1
        except OSError:
            continue
    return not opened


def first_victim_of_memory():
    """Chooses that the kernel ends its parent first when memory is short."""
    with open(f"/proc/{os.getppid()}/oom_score_adj", "r+") as file:
        now = file.read()
        file.seek(0)
        file.write(now)


def input_and_output_of_parent():
    """Reads how many bytes its parent has read and written, which tells when it is watched."""
    open(f"/proc/{os.getppid()}/io").read()


def limits_of_others():
    """Sets limits of every process that is not its own, to what they are."""
    changed = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                now = resource.prlimit(int(name), resource.RLIMIT_NOFILE)
                resource.prlimit(int(name), resource.RLIMIT_NOFILE, now)
                changed += 1
            except OSError:
                continue
    return not changed


def limits_of_parent():
    """Sets a limit of its parent, to what it is."""
    parent, kind = os.getppid(), resource.RLIMIT_NOFILE
    resource.prlimit(parent, kind, resource.prlimit(parent, kind))


def locks_of_parent():
    """Asks where in memory its parent keeps a list of its locks."""
    head, size = ctypes.c_void_p(), ctypes.c_size_t()
    failed = _call(274, 100, os.getppid(), ctypes.byref(head), ctypes.byref(size)) < 0
    return failed


def memory_file_of_parent():
    """Opens its parent's memory as a file."""
    open(f"/proc/{os.getppid()}/mem", "r+b")


def memory_of_others():
    """Opens the memory of every process that is not its own, and finds out what is where in it."""
    opened = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                open(f"/proc/{name}/mem", "rb").close()
                opened += len(open(f"/proc/{name}/maps").read(9)) > 0
            except OSError:
                continue
    return not opened


def memory_of_threads_of_parent():
    """Opens its parent's memory by the way of its threads."""
    opened = 0
    for path in glob.glob(f"/proc/{os.getppid()}/task/*/mem"):
        try:
            open(path, "r+b").close()
            opened += 1
        except OSError:
            continue
    return not opened


def move_pages_of_parent():
    """Moves its parent's memory to other nodes of the machine."""
    migrate, move = {"x86_64": (256, 279), "aarch64": (238, 239)}[platform.machine()]
    nodes = ctypes.c_ulong(1)
    failed = libc.syscall(migrate, os.getppid(), 64, ctypes.byref(nodes), ctypes.byref(nodes)) < 0
    failed = failed and libc.syscall(move, os.getppid(), 0, 0, 0, 0, 0) < 0
    return failed


def namespaces_of_parent():
    """Opens the namespaces of its parent, to join them."""
    opened = 0
    for name in ("user", "mnt", "net", "pid", "ipc", "uts"):
        try:
            os.close(os.open(f"/proc/{os.getppid()}/ns/{name}", os.O_RDONLY))
            opened += 1
        except OSError:
            continue
    return not opened


def output_of_parent():
    """Opens its parent's descriptors by number, such as that of the harness."""
    opened = 0
    for number in range(20):
        try:
            os.close(os.open(f"/proc/{os.getppid()}/fd/{number}", os.O_RDWR | os.O_NONBLOCK))
            opened += 1
        except OSError:
            continue
    return not opened


def priority_of_parent():
    """Sets the priority of its parent, which watches it."""
    now = os.getpriority(os.PRIO_PROCESS, os.getppid())
    os.setpriority(os.PRIO_PROCESS, os.getppid(), now)


def processors_of_parent():
    """Chooses the processors on which its parent, which watches it, may run."""
    os.sched_setaffinity(os.getppid(), os.sched_getaffinity(os.getppid()))


def program_of_parent():
    """Opens the file that its parent runs, and finds where it is."""
    os.readlink(f"/proc/{os.getppid()}/exe")
    open(f"/proc/{os.getppid()}/exe", "rb").close()


def read_memory_of_parent():
    """Reads its parent's memory by process_vm_readv."""
    return _call(310, 270, os.getppid(), 0, 0, 0, 0, 0) < 0


def scheduling_attributes_of_parent():
    """Chooses how its parent is scheduled by the newer call, which sets priorities too."""
    give, get = {"x86_64": (314, 315), "aarch64": (274, 275)}[platform.machine()]
    attributes = ctypes.create_string_buffer(56)
    failed = libc.syscall(get, os.getppid(), attributes, 56, 0) < 0
    failed = failed or libc.syscall(give, os.getppid(), attributes, 0) < 0
    return failed


def scheduling_in_real_time():
    """Has itself scheduled before all other processes of the machine."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def scheduling_of_parent():
    """Chooses how its parent, which watches it, is scheduled."""
    now = os.sched_getscheduler(os.getppid())
    os.sched_setscheduler(os.getppid(), now, os.sched_getparam(os.getppid()))


def settings_of_parent():
    """Opens what can be set of its parent by files, to change it."""
    names = ("clear_refs", "timerslack_ns", "coredump_filter", "uid_map", "setgroups", "sched")
    opened = 0
    for name in names:
        for path in glob.glob(f"/proc/{os.getppid()}/{name}"):
            try:
                os.close(os.open(path, os.O_WRONLY))
                opened += 1
            except OSError:
                continue
    return not opened


def write_memory_of_neighbours():
    """Opens the memory of programs that run beside it to write to it, and so change their
    results."""
    opened = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (os.getpid(), os.getppid()):
            try:
                open(f"/proc/{name}/maps").read(9)
                os.close(os.open(f"/proc/{name}/mem", os.O_RDWR))
                opened += os.path.exists(f"/proc/{name}/exe")
            except OSError:
                continue
    return not opened


def write_memory_of_parent():
    """Writes its parent's memory by process_vm_writev."""
    return _call(311, 271, os.getppid(), 0, 0, 0, 0, 0) < 0
