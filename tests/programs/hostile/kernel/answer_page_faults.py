"""Has the kernel wait for it at an address of its choice, which helps to win races."""

import ctypes
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 323, "aarch64": 282}[platform.machine()]
print("refused" if libc.syscall(number, 0) < 0 else "done")
