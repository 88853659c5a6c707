"""Has the kernel unload a module, though one that does not exist."""

import ctypes
import errno
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 176, "aarch64": 106}[platform.machine()]
libc.syscall(number, b"there_is_no_such_module", 0o4000)
print("done" if ctypes.get_errno() == errno.ENOENT else "refused")
