"""Opens a socket to the kernel's cryptography."""

import socket

try:
    socket.socket(38, socket.SOCK_SEQPACKET)
    print("done")
except OSError:
    print("refused")
