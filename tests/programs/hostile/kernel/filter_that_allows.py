"""Adds a filter of system calls that allows all, and opens a socket by it."""

import ctypes
import socket
import struct

libc = ctypes.CDLL(None, use_errno=True)
line = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
libc.prctl(38, 1, 0, 0, 0)
libc.prctl(22, 2, struct.pack("HP", 1, ctypes.addressof(line)), 0, 0)
try:
    socket.socket(socket.AF_UNIX)
    print("done")
except OSError:
    print("refused")
