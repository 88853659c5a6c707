"""Opens a socket of the protocol MPTCP, in case only the common ones are refused."""

import socket

try:
    socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, 262)
    print("done")
except OSError:
    print("refused")
