"""Mounts a file system in memory, in a user namespace of its own, past the limit of memory."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
os.mkdir("mounted")
child = os.fork()
if child == 0:
    failed = libc.unshare(0x10000000 | 0x20000) < 0
    os._exit(failed or libc.mount(b"none", b"mounted", b"tmpfs", 0, b"size=8g") < 0)
print("refused" if os.waitpid(child, 0)[1] else "done")
os.rmdir("mounted")
