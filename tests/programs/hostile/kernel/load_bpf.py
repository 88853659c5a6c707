"""Makes a map for programs that run in the kernel."""

import ctypes
import platform
import struct

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 321, "aarch64": 280}[platform.machine()]
array = struct.pack("5I", 2, 4, 4, 1, 0).ljust(64, b"\0")
print("refused" if libc.syscall(number, 0, array, len(array)) < 0 else "done")
