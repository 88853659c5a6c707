"""Opens a socket for internet packets of its own making."""

import socket

try:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    print("done")
except OSError:
    print("refused")
