"""Adds a filter of system calls that asks itself, to allow its own forks."""

import ctypes
import platform
import struct

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 317, "aarch64": 277}[platform.machine()]
line = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
libc.prctl(38, 1, 0, 0, 0)
listener = libc.syscall(number, 1, 8, struct.pack("HP", 1, ctypes.addressof(line)))
print("refused" if listener < 0 else "done")
