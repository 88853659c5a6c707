"""Opens a socket of the family 2, internet."""

import socket

try:
    socket.socket(2, socket.SOCK_STREAM if 2 not in (16, 17) else socket.SOCK_RAW)
    print("done")
except OSError:
    print("refused")
