"""Changes how the kernel runs it: at addresses that can be guessed, and readable pages as code."""

import ctypes

libc = ctypes.CDLL(None, use_errno=True)
print("refused" if libc.personality(0x0040000 | 0x0400000) < 0 else "done")
