"""Watches what the machine opens by fanotify, which needs no privileges for a folder."""

import ctypes
import platform

libc = ctypes.CDLL(None, use_errno=True)
begin, mark = {"x86_64": (300, 301), "aarch64": (262, 263)}[platform.machine()]
watches = libc.syscall(begin, 0x200, 0)
opened_or_read = ctypes.c_uint64(0x20 | 0x1 | 0x08000000)
marked = libc.syscall(mark, watches, 1, opened_or_read, -100, b"/usr/bin")
print("refused" if watches < 0 or marked < 0 else "done")
