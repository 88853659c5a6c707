"""Asks for a key of the user."""

import ctypes
import platform

number = {"x86_64": 249, "aarch64": 218}[platform.machine()]
print("refused" if ctypes.CDLL(None).syscall(number, b"user", b"k", 0, -4) < 0 else "done")
