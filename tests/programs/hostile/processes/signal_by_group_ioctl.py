"""Becomes the owner of a socket, whose signals go to its parent's whole group."""

import fcntl
import os
import socket
import struct

try:
    fcntl.ioctl(socket.socketpair()[0], 0x8902, struct.pack("i", -os.getppid()))
    print("done")
except OSError:
    print("refused")
