"""Has the kernel push its parent's memory out to the disk."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
parent = libc.syscall(434, os.getppid(), 0)
print("refused" if parent < 0 or libc.syscall(440, parent, 0, 0, 20, 0) < 0 else "done")
