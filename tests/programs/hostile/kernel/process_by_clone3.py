"""Makes a process in a user namespace by a call whose arguments no filter can look at."""

import ctypes
import os
import struct

libc = ctypes.CDLL(None, use_errno=True)
arguments = struct.pack("8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0)
child = libc.syscall(435, arguments, len(arguments))
if child == 0:
    os._exit(0)
if child > 0:
    os.waitpid(child, 0)
print("refused" if child < 0 else "done")
