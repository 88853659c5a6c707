"""Opens a socket by a number of which a filter sees only half."""

import ctypes
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 41, "aarch64": 198}[platform.machine()]
opened = [libc.syscall(ctypes.c_ulong(upper << 32 | number), 1, 1, 0) for upper in (1, 2**31)]
print("refused" if max(opened) < 0 else "done")
