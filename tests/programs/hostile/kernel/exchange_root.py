"""Exchanges the root in a user namespace of its own, to see what is below it."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 155, "aarch64": 41}[platform.machine()]
os.mkdir("root")
child = os.fork()
if child == 0:
    failed = libc.unshare(0x10000000 | 0x20000) < 0
    failed = failed or libc.mount(b"none", b"root", b"tmpfs", 0, None) < 0
    os._exit(failed or libc.syscall(number, b"root", b"root") < 0)
print("refused" if os.waitpid(child, 0)[1] else "done")
os.rmdir("root")
