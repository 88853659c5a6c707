"""Hostile programs: each function is run alone, and returns whether what it tries was refused."""

import ctypes
import fcntl
import mmap
import os
import resource
import socket
from multiprocessing.shared_memory import SharedMemory

from _shared import _call, _make_in, _no_call, _none, _none_succeeds


def files_in_memory():
    """Makes files in memory, one of them secret from the kernel itself, past the limits of memory
    and of files."""
    return _no_call((319, 279, b"x", 0), (447, 447, 0))  # memfd_create, memfd_secret


def files_on_their_way():
    """Has more files open than it may, by sending them to itself without receiving them."""
    ours, _theirs = socket.socketpair()
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(64)]
    ours.settimeout(0.2)
    for _ in range(17):  # raises OSError at over 1024
        socket.send_fds(ours, [b"."], files)


def fill_shared_memory():
    """Fills files in /dev/shm that are larger together than all files may be."""
    paths = [f"/dev/shm/hostile-{os.getpid()}-{number}" for number in range(2)]
    try:
        for path in paths:
            with open(path, "xb") as file:
                os.posix_fallocate(file.fileno(), 0, 12 * 2**20)
    finally:
        _none(os.remove, paths)


def folders_in_memory():
    """Makes a file in other folders of the machine that are kept in memory."""
    folders = ("/run", "/run/lock", f"/run/user/{os.getuid()}")
    return _none(_make_in, (*folders, "/dev/hugepages", "/dev/mqueue", "/dev"))


def merge_pages():
    """Has its memory, or one page, merged with equal memory of others, whose delay tells what that
    is."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    return _no_call((157, 167, 67, 1, 0, 0, 0)) and _none_succeeds(lambda: page.madvise(12))


def physical_addresses():
    """Asks where in the machine's memory its own is, which attacks on its chips need."""
    page = ctypes.create_string_buffer(b"here", 2 * mmap.PAGESIZE)
    with open("/proc/self/pagemap", "rb", buffering=0) as file:
        file.seek(ctypes.addressof(page) // mmap.PAGESIZE * 8)
        return not int.from_bytes(file.read(8), "little") & (2**55 - 1)


def queues_and_segments():
    """Makes segments, semaphores and queues of messages, which outlive it; counts, reads, changes
    and removes those of others."""
    name, text = f"hostile-{os.getpid()}".encode(), ctypes.create_string_buffer(b"\1", 128)
    return _no_call(
        (29, 194, 0, 1 << 20, 0o1600),  # shmget
        (30, 196, 2**20, None, 0),  # shmat
        (31, 195, 0, 14, text),  # shmctl
        (64, 190, 0, 1, 0o1600),  # semget
        (65, 193, 2**20, bytes([0, 0, 1, 0, 0, 0]), 1),  # semop
        (66, 191, 0, 0, 19, text),  # semctl
        (68, 186, 0, 0o1600),  # msgget
        (69, 189, 2**20, text, 1, 0o4000),  # msgsnd
        (70, 188, 2**20, text, 1, 0, 0o4000),  # msgrcv
        (71, 187, 0, 12, text),  # msgctl
        (240, 180, name, os.O_CREAT | os.O_RDWR, 0o600, 0),  # mq_open
        (241, 181, name),  # mq_unlink
        (242, 182, -1, None, None, 0, None),  # mq_timedsend
        (243, 183, -1, None, None, 0, None),  # mq_timedreceive
        (244, 184, -1, None),  # mq_notify
        (245, 185, -1, None, None),  # mq_getsetattr
    )


def raise_limits():
    """Raises the limits of its own memory, files, processes, buffers, pipes and segments, takes
    from the machine's requests and huge pages, and is never ended when memory is short."""
    most = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    kinds = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU)
    huge, ours = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000, socket.socketpair()[0]
    attempts = (
        *(lambda kind=kind: resource.setrlimit(kind, most) for kind in kinds),
        lambda: resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE, (4096, 2**20)),
        lambda: ours.setsockopt(socket.SOL_SOCKET, 32, 2**26),
        lambda: fcntl.fcntl(os.pipe()[0], 1031, 2**24),
        lambda: SharedMemory(create=True, size=2**25).unlink(),
        lambda: _call(206, 0, 1024, ctypes.byref(ctypes.c_ulong(0))) >= 0,  # io_setup
        lambda: mmap.mmap(-1, 2**21, flags=huge),
        lambda: os.write(os.open("/proc/self/oom_score_adj", os.O_RDWR), b"-1000"),
    )
    return _none(lambda attempt: attempt(), attempts, (OSError, ValueError))
