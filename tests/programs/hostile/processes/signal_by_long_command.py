"""Sets a pipe's owner with bits above those that the kernel looks at in a command."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 72, "aarch64": 25}[platform.machine()]
command = ctypes.c_uint64(0x7_0000_0008)
print("refused" if libc.syscall(number, os.pipe()[0], command, os.getppid()) < 0 else "done")
