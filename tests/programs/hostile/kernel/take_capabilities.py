"""Takes all capabilities there are."""

import ctypes
import platform
import struct

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 126, "aarch64": 91}[platform.machine()]
header = struct.pack("Ii", 0x20080522, 0)
wanted = struct.pack("6I", 1 << 21, 1 << 21, 0, 0, 0, 0)
print("refused" if libc.syscall(number, header, wanted) < 0 else "done")
