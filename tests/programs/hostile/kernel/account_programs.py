"""Has the kernel write down all programs that end, though to a file that does not exist."""

import ctypes
import errno
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 163, "aarch64": 89}[platform.machine()]
libc.syscall(number, b"/there/is/no/such/file")
print("done" if ctypes.get_errno() == errno.ENOENT else "refused")
