"""Says how long what is in a file of the machine will last, which changes how disks keep it."""

import fcntl
import os
import struct

try:
    with open(os.__file__, "rb") as file:
        fcntl.fcntl(file, 1036, struct.pack("Q", 0))
    print("done")
except OSError:
    print("refused")
