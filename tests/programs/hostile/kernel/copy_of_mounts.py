"""Copies the tree of mounts, without what was mounted over it or with other attributes."""

import ctypes

libc = ctypes.CDLL(None, use_errno=True)
copied = [libc.syscall(428, -100, b"/", flags) for flags in (1, 1 | 0x8000)]
print("refused" if max(copied) < 0 else "done")
