"""Sends a signal to another process by a descriptor that stands for it."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
others = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, os.getpid()}
sent = [libc.syscall(424, libc.syscall(434, one, 0), 0, 0, 0) for one in list(others)[:50]]
print("refused" if max(sent, default=-1) < 0 else "done")
