"""Compares its descriptors with its parent's, to learn which they share."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 312, "aarch64": 272}[platform.machine()]
compared = [libc.syscall(number, os.getpid(), os.getppid(), 0, 0, one) for one in range(10)]
print("refused" if max(compared) < 0 else "done")
