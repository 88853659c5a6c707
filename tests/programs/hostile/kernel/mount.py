"""Mounts a file system over a folder of its own."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
os.mkdir("mounted")
mounted = libc.mount(b"none", b"mounted", b"tmpfs", 0, None) == 0
if mounted:
    libc.umount2(b"mounted", 2)
os.rmdir("mounted")
print("done" if mounted else "refused")
