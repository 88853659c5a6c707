"""Sets the version of a file outside its folder, by which network file systems know it."""

import fcntl
import os

try:
    with open(os.__file__, "rb") as file:
        version = fcntl.ioctl(file, 0x80087601, bytes(8))
        fcntl.ioctl(file, 0x40087602, version)
    print("done")
except OSError:
    print("refused")
