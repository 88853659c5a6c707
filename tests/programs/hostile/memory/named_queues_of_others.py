"""Removes a named queue of messages of another process, if there is one of that name."""

import ctypes
import errno
import platform

libc = ctypes.CDLL(None, use_errno=True)
remove = {"x86_64": 241, "aarch64": 181}[platform.machine()]
libc.syscall(remove, b"no-queue-has-this-name")
print("refused" if ctypes.get_errno() in (errno.EPERM, errno.ENOSYS) else "done")
