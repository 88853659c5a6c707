"""Makes a queue of messages with a name, which outlives it."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
make, remove = {"x86_64": (240, 241), "aarch64": (180, 181)}[platform.machine()]
name = f"hostile-{os.getpid()}".encode()
made = libc.syscall(make, name, os.O_CREAT | os.O_RDWR, 0o600, 0)
libc.syscall(remove, name)
print("refused" if made < 0 else "done")
