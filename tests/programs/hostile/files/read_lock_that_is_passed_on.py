"""Locks a part of a file of the machine for all who get the descriptor, and waits for it."""

import fcntl
import os
import struct

locks = 0
for command in (37, 38, fcntl.F_SETLKW):
    try:
        with open(os.__file__, "rb") as file:
            fcntl.fcntl(file, command, struct.pack("hhqqi", fcntl.F_RDLCK, 0, 0, 1, 0))
        locks += 1
    except OSError:
        continue
print("done" if locks else "refused")
