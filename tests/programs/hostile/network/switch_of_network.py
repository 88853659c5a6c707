"""Sets whether a network device is up, by a pair of sockets."""

import fcntl
import socket

ours, _ = socket.socketpair()
try:
    device = fcntl.ioctl(ours, 0x8913, b"lo".ljust(40, b"\0"))
    fcntl.ioctl(ours, 0x8914, device)
    print("done")
except OSError:
    print("refused")
