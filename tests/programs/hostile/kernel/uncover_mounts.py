"""Unmounts what covers other files, in a user namespace of its own."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
child = os.fork()
if child == 0:
    failed = libc.unshare(0x10000000 | 0x20000) < 0
    os._exit(failed or libc.umount2(b"/tmp", 2) < 0)
print("refused" if os.waitpid(child, 0)[1] else "done")
