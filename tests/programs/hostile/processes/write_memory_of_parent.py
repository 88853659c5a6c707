"""Writes its parent's memory by process_vm_writev."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 311, "aarch64": 271}[platform.machine()]
print("refused" if libc.syscall(number, os.getppid(), 0, 0, 0, 0, 0) < 0 else "done")
