"""Attaches to its parent as a debugger does, and lets it go on."""

import ctypes
import os
import platform
import time

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 101, "aarch64": 117}[platform.machine()]
parent = os.getppid()
if libc.syscall(number, 16, parent, 0, 0) < 0:
    print("refused")
else:
    time.sleep(0.1)
    libc.syscall(number, 17, parent, 0, 0)
    print("done")
