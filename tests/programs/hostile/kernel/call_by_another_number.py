"""Opens a socket by the numbers that calls have in the x32 interface."""

import ctypes
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 0x40000000 | 41, "aarch64": 0x40000000 | 198}[platform.machine()]
print("refused" if libc.syscall(number, 1, 1, 0) < 0 else "done")
