"""Hostile programs: each function is run alone, and returns whether what it tries was refused."""

import ctypes
import errno
import fcntl
import glob
import mmap
import os
import platform
import resource
import socket
from multiprocessing.shared_memory import SharedMemory

libc = ctypes.CDLL(None, use_errno=True)


def _call(number_on_x86_64, number_on_aarch64, *arguments):
    numbers = {"x86_64": number_on_x86_64, "aarch64": number_on_aarch64}
    return libc.syscall(numbers[platform.machine()], *arguments)


def asynchronous_requests():
    """Takes from the number of asynchronous requests that the whole machine may make."""
    begin, end = {"x86_64": (206, 207), "aarch64": (0, 1)}[platform.machine()]
    requests = ctypes.c_ulong(0)
    begun = libc.syscall(begin, 1024, ctypes.byref(requests))
    libc.syscall(end, requests)
    return begun < 0


def drop_caches():
    """Opens the file by which the machine is told to forget all that it has cached."""
    os.close(os.open("/proc/sys/vm/drop_caches", os.O_WRONLY))


def file_in_memory():
    """Makes a file in memory, past the limits of memory and of files."""
    os.memfd_create("x")


def file_system_in_memory():
    """Mounts a file system in memory, in a user namespace of its own, past the limit of memory."""
    os.mkdir("mounted")
    child = os.fork()
    if child == 0:
        failed = libc.unshare(0x10000000 | 0x20000) < 0
        os._exit(failed or libc.mount(b"none", b"mounted", b"tmpfs", 0, b"size=8g") < 0)
    status = os.waitpid(child, 0)[1]
    os.rmdir("mounted")
    return status


def files_of_graphics():
    """Opens the machine's graphics cards, whose memory no limit counts."""
    opened = 0
    for path in (*glob.glob("/dev/dri/*"), *glob.glob("/dev/nvidia*"), "/dev/dma_heap/system"):
        try:
            os.close(os.open(path, os.O_RDWR))
            opened += 1
        except OSError:
            continue
    return not opened


def files_on_their_way():
    """Has more files open than it may, by sending them to itself without receiving them."""
    ours, _theirs = socket.socketpair()
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(64)]
    ours.settimeout(0.2)
    kept = 0
    try:
        for _ in range(40):
            socket.send_fds(ours, [b"."], files)
            kept += len(files)
    except OSError:
        kept += 0
    return not (kept > 1024)


def folder_in_memory():
    """Keeps a file in /dev/shm, where that has more room than its limits allow."""
    path = f"/dev/shm/hostile-{os.getpid()}"
    try:
        open(path, "x").close()
        os.remove(path)
        room = os.statvfs("/dev/shm")
        return not (room.f_blocks * room.f_frsize > 2**25)
    except OSError:
        return True


def huge_pages():
    """Takes from the machine's store of huge pages, which is for others."""
    mmap.mmap(-1, 2**21, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000).close()


def large_buffer():
    """Makes the buffer of a pair of sockets larger than the machine allows."""
    socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, 32, 2**26)


def large_pipe():
    """Makes a pipe that keeps more in the kernel's memory than all pipes may."""
    fcntl.fcntl(os.pipe()[0], 1031, 2**24)


def large_segment():
    """Makes a segment of shared memory with a name that is larger than a file may be."""
    segment = SharedMemory(create=True, size=2**25)
    segment.close()
    segment.unlink()


def last_victim_of_memory():
    """Chooses that the kernel never ends it when memory is short."""
    with open("/proc/self/oom_score_adj", "r+") as file:
        file.write("-1000")


def merge_pages():
    """Has its memory merged with equal memory of others, whose delay tells what that is."""
    return libc.prctl(67, 1, 0, 0, 0) < 0


def merge_pages_by_advice():
    """Has one page merged with equal pages of others, by advice on that page alone."""
    mmap.mmap(-1, mmap.PAGESIZE).madvise(12)


def messages_of_others():
    """Counts the queues of messages of other processes; sends one and takes one that may be
    there."""
    calls = {"x86_64": (69, 70, 71), "aarch64": (189, 188, 187)}[platform.machine()]
    send, receive, control = calls
    message = ctypes.create_string_buffer(b"\1", 128)
    count = libc.syscall(control, 0, 12, message)
    answers = []
    for arguments in ((send, 2**20, message, 1, 0o4000), (receive, 2**20, message, 1, 0, 0o4000)):
        libc.syscall(*arguments)
        answers.append(ctypes.get_errno())
    answered = set(answers) - {errno.EPERM, errno.ENOSYS}
    return not (count >= 0 or answered)


def named_queues_of_others():
    """Removes a named queue of messages of another process, if there is one of that name."""
    remove = {"x86_64": 241, "aarch64": 181}[platform.machine()]
    libc.syscall(remove, b"no-queue-has-this-name")
    return ctypes.get_errno() in (errno.EPERM, errno.ENOSYS)


def other_folders_in_memory():
    """Makes a file in other folders of the machine that are kept in memory."""
    folders = (
        "/run",
        "/run/lock",
        f"/run/user/{os.getuid()}",
        "/dev/hugepages",
        "/dev/mqueue",
        "/dev",
    )
    made = 0
    for folder in folders:
        path = f"{folder}/hostile-{os.getpid()}"
        try:
            open(path, "x").close()
            os.remove(path)
            made += 1
        except OSError:
            continue
    return not made


def physical_addresses():
    """Asks where in the machine's memory its own is, which attacks on its chips need."""
    page = ctypes.create_string_buffer(b"here", 2 * mmap.PAGESIZE)
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(ctypes.addressof(page) // mmap.PAGESIZE * 8)
            entry = int.from_bytes(file.read(8), "little")
        return not (entry & (2**55 - 1))
    except OSError:
        return True


def physical_pages():
    """Reads what the pages of the machine's memory are used for."""
    read = 0
    for name in ("kpageflags", "kpagecount", "kpagecgroup"):
        try:
            descriptor = os.open(f"/proc/{name}", os.O_RDONLY)
            os.lseek(descriptor, 8 * 4096, os.SEEK_SET)
            read += len(os.read(descriptor, 8)) > 0
        except OSError:
            continue
    return not read


def queue_of_messages():
    """Makes a queue of messages with a name, which outlives it."""
    make, remove = {"x86_64": (240, 241), "aarch64": (180, 181)}[platform.machine()]
    name = f"hostile-{os.getpid()}".encode()
    made = libc.syscall(make, name, os.O_CREAT | os.O_RDWR, 0o600, 0)
    libc.syscall(remove, name)
    return made < 0


def raise_limit():
    """Raises the limits of its own memory, files and processes."""
    raised = 0
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU):
        try:
            resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            raised += 1
        except (OSError, ValueError):
            continue
    return not raised


def raise_limit_by_number():
    """Raises a limit of its own under its number as a process, in case only 0 is looked at."""
    try:
        resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE, (4096, 2**20))
        return False
    except (OSError, ValueError):
        return True


def read_queues_of_others():
    """Sends to queues of messages that it has inherited, takes from them, and asks for their
    sizes."""
    calls = {"x86_64": (242, 243, 244, 245), "aarch64": (182, 183, 184, 185)}[platform.machine()]
    answers = []
    for call in calls:
        libc.syscall(call, -1, None, None, 0, None)
        answers.append(ctypes.get_errno())
    return not (set(answers) - {errno.EPERM, errno.ENOSYS})


def secret_file_in_memory():
    """Makes a file in memory that not even the kernel reads, past the limits of files."""
    return ctypes.CDLL(None, use_errno=True).syscall(447, 0) < 0


def segments_of_others():
    """Counts the segments of shared memory of other processes, and attaches one that may be
    there."""
    attach, control = {"x86_64": (30, 31), "aarch64": (196, 195)}[platform.machine()]
    count = libc.syscall(control, 0, 14, ctypes.create_string_buffer(64))
    libc.syscall(attach, 2**20, None, 0)
    answered = ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)
    return not (count >= 0 or answered)


def semaphores_of_others():
    """Counts the semaphores of other processes, and raises one that may be there."""
    control, raise_one = {"x86_64": (66, 65), "aarch64": (191, 193)}[platform.machine()]
    count = libc.syscall(control, 0, 0, 19, ctypes.create_string_buffer(64))
    libc.syscall(raise_one, 2**20, bytes([0, 0, 1, 0, 0, 0]), 1)
    answered = ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)
    return not (count >= 0 or answered)


def several_segments():
    """Fills files in /dev/shm that are larger together than all files may be."""
    paths = [f"/dev/shm/hostile-{os.getpid()}-{number}" for number in range(2)]
    try:
        for path in paths:
            with open(path, "xb") as file:
                os.posix_fallocate(file.fileno(), 0, 12 * 2**20)
        return False
    except OSError:
        return True
    for path in filter(os.path.exists, paths):
        os.remove(path)


def share_memory():
    """Gets a segment of shared memory, which outlives it."""
    return _call(29, 194, 0, 1 << 20, 0o1600) < 0


def share_messages():
    """Gets a queue of messages, which outlives it."""
    return _call(68, 186, 0, 0o1600) < 0


def share_semaphore():
    """Gets a semaphore, which outlives it."""
    return _call(64, 190, 0, 1, 0o1600) < 0


def swap():
    """Has the machine swap memory to a file of its own."""
    _call(167, 224, b"/there/is/no/such/file", 0)
    # The kernel looks for the file only once it has found that it may do this.
    return os.strerror(ctypes.get_errno()) != "No such file or directory"
