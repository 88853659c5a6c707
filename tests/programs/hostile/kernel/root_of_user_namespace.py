"""Becomes root in a user namespace of its own, as containers without privileges do."""

import ctypes
import os

user = os.getuid()
try:
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000) < 0:
        raise OSError("no namespace")
    open("/proc/self/uid_map", "w").write(f"0 {user} 1")
    print("done")
except OSError:
    print("refused")
