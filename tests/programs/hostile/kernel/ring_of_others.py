"""Registers with rings of requests and enters them, in case only their making is refused."""

import ctypes
import errno

libc = ctypes.CDLL(None, use_errno=True)
reached = 0
for number, *arguments in ((426, 0, 0, 0, 0, 0, 0), (427, -1, 24, 0, 0)):
    libc.syscall(number, *arguments)
    reached += ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)
print("done" if reached else "refused")
