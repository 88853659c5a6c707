"""Opens a socket that may ping other machines, which needs no privileges."""

import socket

try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    print("done")
except OSError:
    print("refused")
