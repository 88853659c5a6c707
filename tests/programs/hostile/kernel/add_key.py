"""Adds a key to the user's keyring."""

import ctypes
import platform

number = {"x86_64": 248, "aarch64": 217}[platform.machine()]
print("refused" if ctypes.CDLL(None).syscall(number, b"user", b"k", b"v", 1, -4) < 0 else "done")
