"""Sets how fast the machine's clock runs, to how fast it does."""

import ctypes
import struct

libc = ctypes.CDLL(None, use_errno=True)
clock = ctypes.create_string_buffer(256)
libc.adjtimex(clock)
struct.pack_into("i", clock, 0, 0x4000)
print("refused" if libc.adjtimex(clock) < 0 else "done")
