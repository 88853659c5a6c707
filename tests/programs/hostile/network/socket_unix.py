"""Opens a socket of the family 1, unix."""

import socket

try:
    socket.socket(1, socket.SOCK_STREAM if 1 not in (16, 17) else socket.SOCK_RAW)
    print("done")
except OSError:
    print("refused")
