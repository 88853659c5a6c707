"""Moves its parent's memory to other nodes of the machine."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
migrate, move = {"x86_64": (256, 279), "aarch64": (238, 239)}[platform.machine()]
nodes = ctypes.c_ulong(1)
failed = libc.syscall(migrate, os.getppid(), 64, ctypes.byref(nodes), ctypes.byref(nodes)) < 0
failed = failed and libc.syscall(move, os.getppid(), 0, 0, 0, 0, 0) < 0
print("refused" if failed else "done")
