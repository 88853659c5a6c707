"""Opens a socket of the family Bluetooth."""

import socket

try:
    socket.socket(31, socket.SOCK_RAW, 1)
    print("done")
except OSError:
    print("refused")
