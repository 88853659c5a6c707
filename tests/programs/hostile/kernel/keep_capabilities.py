"""Sets what root's user number is worth, to what that is."""

import ctypes

libc = ctypes.CDLL(None, use_errno=True)
print("refused" if libc.prctl(28, libc.prctl(27, 0, 0, 0, 0), 0, 0, 0) < 0 else "done")
