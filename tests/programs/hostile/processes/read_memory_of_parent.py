"""Reads its parent's memory by process_vm_readv."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 310, "aarch64": 270}[platform.machine()]
print("refused" if libc.syscall(number, os.getppid(), 0, 0, 0, 0, 0) < 0 else "done")
