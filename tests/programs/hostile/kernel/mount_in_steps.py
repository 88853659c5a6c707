"""Makes a file system by the newer calls, which mount it nowhere."""

import ctypes

libc = ctypes.CDLL(None, use_errno=True)
system = libc.syscall(430, b"tmpfs", 0)
failed = system < 0 or libc.syscall(431, system, 6, 0, 0, 0) < 0
print("refused" if failed or libc.syscall(432, system, 0, 0) < 0 else "done")
