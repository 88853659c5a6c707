"""Opens a socket of the family 16, netlink."""

import socket

try:
    socket.socket(16, socket.SOCK_STREAM if 16 not in (16, 17) else socket.SOCK_RAW)
    print("done")
except OSError:
    print("refused")
