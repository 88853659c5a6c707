"""Opens a socket of the family 40, virtual machine."""

import socket

try:
    socket.socket(40, socket.SOCK_STREAM if 40 not in (16, 17) else socket.SOCK_RAW)
    print("done")
except OSError:
    print("refused")
