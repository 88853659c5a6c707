"""Lists the mounts of the machine by number, and asks for what they are."""

import ctypes
import struct

libc = ctypes.CDLL(None, use_errno=True)
numbers = ctypes.create_string_buffer(8 * 1000)
listed = libc.syscall(458, struct.pack("IIQQ", 24, 0, 2**64 - 1, 0), numbers, 1000, 0)
asked = struct.pack("II16s", 24, 0, numbers[:8] + struct.pack("Q", 1))
described = libc.syscall(457, asked, ctypes.create_string_buffer(4096), 4096, 0)
print("refused" if max(listed, described) < 0 else "done")
