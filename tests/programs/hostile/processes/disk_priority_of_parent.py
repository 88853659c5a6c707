"""Sets the priority with which its parent uses the disk."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
give, get = {"x86_64": (251, 252), "aarch64": (30, 31)}[platform.machine()]
now = libc.syscall(get, 1, os.getppid())
print("refused" if now < 0 or libc.syscall(give, 1, os.getppid(), now) < 0 else "done")
