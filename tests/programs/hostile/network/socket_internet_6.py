"""Opens a socket of the internet protocol's version 6."""

import socket

try:
    socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    print("done")
except OSError:
    print("refused")
