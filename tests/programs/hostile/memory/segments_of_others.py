"""Counts the segments of shared memory of other processes, and attaches one that may be there."""

import ctypes
import errno
import platform

libc = ctypes.CDLL(None, use_errno=True)
attach, control = {"x86_64": (30, 31), "aarch64": (196, 195)}[platform.machine()]
count = libc.syscall(control, 0, 14, ctypes.create_string_buffer(64))
libc.syscall(attach, 2**20, None, 0)
answered = ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)
print("done" if count >= 0 or answered else "refused")
