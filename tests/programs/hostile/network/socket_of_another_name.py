"""Gives one end of a pair of sockets a name under which all of the machine reaches it."""

import os
import socket

ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
try:
    theirs.close()
    ours.bind(f"\0hostile-{os.getpid()}")
    # In a network of its own only its own socket has a name.
    names = [line for line in open("/proc/net/unix") if "hostile-" not in line]
    print("done" if len(names) > 1 else "refused")
except OSError:
    print("refused")
