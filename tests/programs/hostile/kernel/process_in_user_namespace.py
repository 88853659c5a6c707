"""Makes a process that starts in a user namespace of its own, with all privileges there."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
child = libc.syscall(number, 0x10000000 | 17, 0, 0, 0, 0)
if child == 0:
    os._exit(0)
if child > 0:
    os.waitpid(child, 0)
print("refused" if child < 0 else "done")
