"""Joins a keyring of the session."""

import ctypes
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 250, "aarch64": 219}[platform.machine()]
print("refused" if libc.syscall(number, 1, 0, 0, 0, 0) < 0 else "done")
