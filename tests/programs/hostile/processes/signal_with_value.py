"""Queues a signal with a value for another process."""

import ctypes
import os
import platform
import struct

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 129, "aarch64": 138}[platform.machine()]
others = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, os.getpid()}
queued = struct.pack("iiiiii", 0, 0, -1, 0, os.getpid(), os.getuid()).ljust(128, b"\0")
sent = [libc.syscall(number, one, 0, queued) for one in others]
print("refused" if max(sent, default=-1) < 0 else "done")
