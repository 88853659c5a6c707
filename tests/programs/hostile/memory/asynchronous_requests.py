"""Takes from the number of asynchronous requests that the whole machine may make."""

import ctypes
import platform

libc = ctypes.CDLL(None, use_errno=True)
begin, end = {"x86_64": (206, 207), "aarch64": (0, 1)}[platform.machine()]
requests = ctypes.c_ulong(0)
begun = libc.syscall(begin, 1024, ctypes.byref(requests))
libc.syscall(end, requests)
print("refused" if begun < 0 else "done")
