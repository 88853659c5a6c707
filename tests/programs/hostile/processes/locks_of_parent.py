"""Asks where in memory its parent keeps a list of its locks."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 274, "aarch64": 100}[platform.machine()]
head, size = ctypes.c_void_p(), ctypes.c_size_t()
failed = libc.syscall(number, os.getppid(), ctypes.byref(head), ctypes.byref(size)) < 0
print("refused" if failed else "done")
