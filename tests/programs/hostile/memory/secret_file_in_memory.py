"""Makes a file in memory that not even the kernel reads, past the limits of files."""

import ctypes

print("refused" if ctypes.CDLL(None, use_errno=True).syscall(447, 0) < 0 else "done")
