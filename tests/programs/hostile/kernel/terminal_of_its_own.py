"""Has the kernel load a line discipline for a terminal, many of which had holes."""

import fcntl
import os
import struct

loaded = 0
try:
    terminal = os.openpty()[1]
except OSError:
    terminal = -1
for discipline in (13, 21, 15, 3, 1):
    try:
        fcntl.ioctl(terminal, 0x5423, struct.pack("i", discipline))
        loaded += 1
    except (OSError, ValueError):
        continue
print("done" if loaded else "refused")
