"""Asks its parent to trace it."""

import ctypes
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 101, "aarch64": 117}[platform.machine()]
print("refused" if libc.syscall(number, 0, 0, 0, 0) < 0 else "done")
