"""Counts what its parent does, which tells secrets by their timing."""

import ctypes
import os
import platform
import struct

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 298, "aarch64": 241}[platform.machine()]
in_user_mode = struct.pack("IIQ", 1, 64, 0).ljust(40, b"\0") + struct.pack("Q", 1 << 5 | 1 << 6)
clock = ctypes.create_string_buffer(in_user_mode.ljust(64, b"\0"), 64)
print("refused" if libc.syscall(number, clock, os.getppid(), -1, -1, 0) < 0 else "done")
