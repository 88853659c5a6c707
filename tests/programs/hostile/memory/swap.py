"""Has the machine swap memory to a file of its own."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 167, "aarch64": 224}[platform.machine()]
libc.syscall(number, b"/there/is/no/such/file", 0)
# The kernel looks for the file only once it has found that it may do this.
print("done" if os.strerror(ctypes.get_errno()) == "No such file or directory" else "refused")
