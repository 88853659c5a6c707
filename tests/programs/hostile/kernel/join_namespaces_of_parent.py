"""Joins all namespaces of its parent at once, by a descriptor that stands for it."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
parent = libc.syscall(434, os.getppid(), 0)
joined = [libc.setns(parent, kind) for kind in (0x40000000, 0x4000000, 0x8000000, 0x20000)]
print("refused" if max(joined) < 0 else "done")
