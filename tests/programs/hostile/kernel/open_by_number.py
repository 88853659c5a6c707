"""Opens a file by its number on the disk, which needs no path that leads to it."""

import ctypes
import os
import platform
import struct

libc = ctypes.CDLL(None, use_errno=True)
name, by_handle = {"x86_64": (303, 304), "aarch64": (264, 265)}[platform.machine()]
handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136)
mount = ctypes.c_int()
libc.syscall(name, -100, b"/usr", handle, ctypes.byref(mount), 0)
folder = os.open("/usr", os.O_RDONLY)
print("refused" if libc.syscall(by_handle, folder, handle, os.O_RDONLY) < 0 else "done")
