"""Gets a queue of messages, which outlives it."""

import ctypes
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 68, "aarch64": 186}[platform.machine()]
print("refused" if libc.syscall(number, 0, 0o1600) < 0 else "done")
