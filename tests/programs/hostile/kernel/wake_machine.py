"""Sets a timer that wakes the machine from sleep, and that no suspending stops."""

import ctypes
import platform
import struct

libc = ctypes.CDLL(None, use_errno=True)
number = {"x86_64": 283, "aarch64": 85}[platform.machine()]
timer = libc.syscall(number, 9, 0)
in_a_day = struct.pack("4q", 0, 0, 86400, 0)
print("refused" if timer < 0 or libc.timerfd_settime(timer, 0, in_a_day, None) < 0 else "done")
