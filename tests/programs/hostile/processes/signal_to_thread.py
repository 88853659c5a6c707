"""Sends a signal to a single thread of another process, by both calls for that."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
of_group, of_any = {"x86_64": (234, 200), "aarch64": (131, 130)}[platform.machine()]
others = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, os.getpid()}
sent = [libc.syscall(of_any, one, 0) for one in others]
sent += [libc.syscall(of_group, one, one, 0) for one in others]
print("refused" if max(sent, default=-1) < 0 else "done")
