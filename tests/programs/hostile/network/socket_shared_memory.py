"""Opens a socket of the family SMC, which reaches the internet under another number."""

import socket

try:
    socket.socket(43, socket.SOCK_STREAM)
    print("done")
except OSError:
    print("refused")
