"""Counts what itself does, the kernel's part included."""

import ctypes
import platform
import struct

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 298, "aarch64": 241}[platform.machine()]
clock = ctypes.create_string_buffer(struct.pack("IIQ", 1, 64, 0).ljust(64, b"\0"), 64)
print("refused" if libc.syscall(number, clock, 0, -1, -1, 0) < 0 else "done")
