"""Gets the keyring of its user that outlives all sessions."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 250, "aarch64": 219}[platform.machine()]
print("refused" if libc.syscall(number, 22, os.getuid(), -2, 0, 0) < 0 else "done")
