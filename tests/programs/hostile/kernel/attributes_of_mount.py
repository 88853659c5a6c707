"""Sets the attributes of a mount, to what they may well be."""

import ctypes
import struct

libc = ctypes.CDLL(None, use_errno=True)
no_change = struct.pack("4Q", 0, 0, 0, 0)
print("refused" if libc.syscall(442, -100, b"/", 0, no_change, 32) < 0 else "done")
