"""Opens a socket of the family 17, packets."""

import socket

try:
    socket.socket(17, socket.SOCK_STREAM if 17 not in (16, 17) else socket.SOCK_RAW)
    print("done")
except OSError:
    print("refused")
