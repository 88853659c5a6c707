"""Asks for access to the machine's ports, by which processors reach devices."""

import ctypes
import platform

libc = ctypes.CDLL(None, use_errno=True)
allowed = platform.machine() == "x86_64" and libc.ioperm(0x80, 1, 1) == 0
print("done" if allowed else "refused")
