"""Sets the attributes of a file outside its folder, by the call that names them all."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
attributes = ctypes.create_string_buffer(24)
path = os.__file__.encode()
libc.syscall(468, -100, path, attributes, 24, 0)
print("refused" if libc.syscall(469, -100, path, attributes, 24, 0) < 0 else "done")
