"""Counts the semaphores of other processes, and raises one that may be there."""

import ctypes
import errno
import platform

libc = ctypes.CDLL(None, use_errno=True)
control, raise_one = {"x86_64": (66, 65), "aarch64": (191, 193)}[platform.machine()]
count = libc.syscall(control, 0, 0, 19, ctypes.create_string_buffer(64))
libc.syscall(raise_one, 2**20, bytes([0, 0, 1, 0, 0, 0]), 1)
answered = ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)
print("done" if count >= 0 or answered else "refused")
