"""Asks how much of the machine's disk its users may fill."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
folder = os.open("/", os.O_RDONLY)
use = ctypes.create_string_buffer(256)
read = [libc.syscall(443, folder, command << 8, 0, use) for command in (0x800007, 0x800004)]
print("refused" if max(read) < 0 else "done")
