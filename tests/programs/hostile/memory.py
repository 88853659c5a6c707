"""Hostile programs: each function is run alone, and returns whether what it tries was refused."""

import ctypes
import errno
import fcntl
import glob
import mmap
import os
import resource
import socket
from multiprocessing.shared_memory import SharedMemory

from _shared import _call, _error, _make_in, _none, libc

ERRORS = (OSError, ValueError)
UNANSWERED = {errno.EPERM, errno.ENOSYS}


def asynchronous_requests():
    """Takes from the number of asynchronous requests that the whole machine may make."""
    requests = ctypes.c_ulong(0)
    begun = _call(206, 0, 1024, ctypes.byref(requests))
    _call(207, 1, requests)
    return begun < 0


def drop_caches():
    """Opens the file by which the machine is told to forget all that it has cached."""
    os.open("/proc/sys/vm/drop_caches", os.O_WRONLY)


def file_in_memory():
    """Makes a file in memory, past the limits of memory and of files."""
    os.memfd_create("x")


def file_system_in_memory():
    """Mounts a file system in memory, in a user namespace of its own, past the limit of memory."""
    os.mkdir("mounted")
    if libc.unshare(0x10000000 | 0x20000) < 0:
        return True
    return libc.mount(b"none", b"mounted", b"tmpfs", 0, b"size=8g") < 0


def files_of_graphics():
    """Opens the machine's graphics cards, whose memory no limit counts."""
    paths = (*glob.glob("/dev/dri/*"), *glob.glob("/dev/nvidia*"), "/dev/dma_heap/system")
    return _none(lambda path: os.close(os.open(path, os.O_RDWR)), paths)


def files_on_their_way():
    """Has more files open than it may, by sending them to itself without receiving them."""
    ours, _theirs = socket.socketpair()
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(64)]
    ours.settimeout(0.2)
    for _ in range(17):  # raises OSError at over 1024
        socket.send_fds(ours, [b"."], files)


def folder_in_memory():
    """Keeps a file in /dev/shm, where that has more room than its limits allow."""
    _make_in("/dev/shm")
    room = os.statvfs("/dev/shm")
    return room.f_blocks * room.f_frsize <= 2**25


def huge_pages():
    """Takes from the machine's store of huge pages, which is for others."""
    mmap.mmap(-1, 2**21, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)


def large_buffer():
    """Makes the buffer of a pair of sockets larger than the machine allows."""
    socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, 32, 2**26)


def large_pipe():
    """Makes a pipe that keeps more in the kernel's memory than all pipes may."""
    fcntl.fcntl(os.pipe()[0], 1031, 2**24)


def large_segment():
    """Makes a segment of shared memory with a name that is larger than a file may be."""
    SharedMemory(create=True, size=2**25).unlink()


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
    message = ctypes.create_string_buffer(b"\1", 128)
    answers = {_error(69, 189, 2**20, message, 1, 0o4000)}
    answers.add(_error(70, 188, 2**20, message, 1, 0, 0o4000))
    return _call(71, 187, 0, 12, message) < 0 and answers <= UNANSWERED


def named_queues_of_others():
    """Removes a named queue of messages of another process, if there is one of that name."""
    return _error(241, 181, b"no-queue-has-this-name") in UNANSWERED


def other_folders_in_memory():
    """Makes a file in other folders of the machine that are kept in memory."""
    folders = ("/run", "/run/lock", f"/run/user/{os.getuid()}")
    return _none(_make_in, (*folders, "/dev/hugepages", "/dev/mqueue", "/dev"))


def physical_addresses():
    """Asks where in the machine's memory its own is, which attacks on its chips need."""
    page = ctypes.create_string_buffer(b"here", 2 * mmap.PAGESIZE)
    with open("/proc/self/pagemap", "rb", buffering=0) as file:
        file.seek(ctypes.addressof(page) // mmap.PAGESIZE * 8)
        return not int.from_bytes(file.read(8), "little") & (2**55 - 1)


def physical_pages():
    """Reads what the pages of the machine's memory are used for."""
    files = [f"/proc/{name}" for name in ("kpageflags", "kpagecount", "kpagecgroup")]
    return _none(lambda file: os.pread(os.open(file, os.O_RDONLY), 8, 8 * 4096) != b"", files)


def queue_of_messages():
    """Makes a queue of messages with a name, which outlives it."""
    name = f"hostile-{os.getpid()}".encode()
    made = _call(240, 180, name, os.O_CREAT | os.O_RDWR, 0o600, 0)
    _call(241, 181, name)
    return made < 0


def raise_limit():
    """Raises the limits of its own memory, files and processes."""
    most = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    kinds = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU)
    return _none(lambda kind: resource.setrlimit(kind, most), kinds, ERRORS)


def raise_limit_by_number():
    """Raises a limit of its own under its number as a process, in case only 0 is looked at."""
    limits = [(4096, 2**20)]
    return _none(
        lambda limit: resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE, limit), limits, ERRORS
    )


def read_queues_of_others():
    """Sends to queues of messages that it has inherited, takes from them, and asks for their
    sizes."""
    calls = ((242, 182), (243, 183), (244, 184), (245, 185))
    return {_error(*numbers, -1, None, None, 0, None) for numbers in calls} <= UNANSWERED


def secret_file_in_memory():
    """Makes a file in memory that not even the kernel reads, past the limits of files."""
    return libc.syscall(447, 0) < 0


def segments_of_others():
    """Counts the segments of shared memory of other processes, and attaches one that may be
    there."""
    count = _call(31, 195, 0, 14, ctypes.create_string_buffer(64))
    return count < 0 and _error(30, 196, 2**20, None, 0) in UNANSWERED


def semaphores_of_others():
    """Counts the semaphores of other processes, and raises one that may be there."""
    count = _call(66, 191, 0, 0, 19, ctypes.create_string_buffer(64))
    return count < 0 and _error(65, 193, 2**20, bytes([0, 0, 1, 0, 0, 0]), 1) in UNANSWERED


def several_segments():
    """Fills files in /dev/shm that are larger together than all files may be."""
    paths = [f"/dev/shm/hostile-{os.getpid()}-{number}" for number in range(2)]
    try:
        for path in paths:
            with open(path, "xb") as file:
                os.posix_fallocate(file.fileno(), 0, 12 * 2**20)
    finally:
        _none(os.remove, paths)


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
    # The kernel looks for the file only once it has found that it may do this.
    return _error(167, 224, b"/there/is/no/such/file", 0) != errno.ENOENT
