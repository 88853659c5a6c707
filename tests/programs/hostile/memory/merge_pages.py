"""Has its memory merged with equal memory of others, whose delay tells what that is."""

import ctypes

libc = ctypes.CDLL(None, use_errno=True)
print("refused" if libc.prctl(67, 1, 0, 0, 0) < 0 else "done")
