"""Attaches to its parent as a debugger does, without stopping it."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 101, "aarch64": 117}[platform.machine()]
print("refused" if libc.syscall(number, 0x4206, os.getppid(), 0, 0) < 0 else "done")
