"""Makes a network in a user namespace of its own and configures it, as root does."""

import ctypes
import fcntl
import socket

try:
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000 | 0x40000000) < 0:
        raise OSError("no namespaces")
    ours, _ = socket.socketpair()
    device = fcntl.ioctl(ours, 0x8913, b"lo".ljust(40, b"\0"))
    fcntl.ioctl(ours, 0x8914, device[:16] + b"\x49" + device[17:])
    print("done")
except OSError:
    print("refused")
