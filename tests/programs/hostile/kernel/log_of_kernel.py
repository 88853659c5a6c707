"""Reads the kernel's log by the call for that."""

import ctypes
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 103, "aarch64": 116}[platform.machine()]
text = ctypes.create_string_buffer(4096)
print("refused" if libc.syscall(number, 3, text, len(text)) <= 0 else "done")
