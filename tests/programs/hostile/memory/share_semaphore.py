"""Gets a semaphore, which outlives it."""

import ctypes
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 64, "aarch64": 190}[platform.machine()]
print("refused" if libc.syscall(number, 0, 1, 0o1600) < 0 else "done")
