"""Makes the buffer of a pair of sockets larger than the machine allows."""

import socket

try:
    socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, 32, 2**26)
    print("done")
except OSError:
    print("refused")
