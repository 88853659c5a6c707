"""Mounts a folder over another in a user namespace of its own, by which it hides files."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
child = os.fork()
if child == 0:
    failed = libc.unshare(0x10000000 | 0x20000) < 0
    os._exit(failed or libc.mount(b"/usr", b"/tmp", None, 4096 | 16384, None) < 0)
print("refused" if os.waitpid(child, 0)[1] else "done")
