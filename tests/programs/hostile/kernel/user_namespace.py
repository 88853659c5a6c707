"""Makes a user namespace, in which it has all privileges."""

import ctypes

print("refused" if ctypes.CDLL(None, use_errno=True).unshare(0x10000000) < 0 else "done")
