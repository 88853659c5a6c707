"""Sets the flags of a file outside its folder, one of which makes it unchangeable."""

import fcntl
import os

try:
    with open(os.__file__, "rb") as file:
        flags = fcntl.ioctl(file, 0x80086601, bytes(8))
        fcntl.ioctl(file, 0x40086602, flags)
    print("done")
except OSError:
    print("refused")
