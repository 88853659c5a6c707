"""Has more files open than it may, by sending them to itself without receiving them."""

import os
import socket

ours, theirs = socket.socketpair()
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(64)]
ours.settimeout(0.2)
kept = 0
try:
    for _ in range(40):
        socket.send_fds(ours, [b"."], files)
        kept += len(files)
except OSError:
    kept += 0
print("done" if kept > 1024 else "refused")
