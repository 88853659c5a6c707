"""Chooses how its parent is scheduled by the newer call, which sets priorities too."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
give, get = {"x86_64": (314, 315), "aarch64": (274, 275)}[platform.machine()]
attributes = ctypes.create_string_buffer(56)
failed = libc.syscall(get, os.getppid(), attributes, 56, 0) < 0
failed = failed or libc.syscall(give, os.getppid(), attributes, 0) < 0
print("refused" if failed else "done")
