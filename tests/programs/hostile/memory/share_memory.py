"""Gets a segment of shared memory, which outlives it."""

import ctypes
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 29, "aarch64": 194}[platform.machine()]
print("refused" if libc.syscall(number, 0, 1 << 20, 0o1600) < 0 else "done")
