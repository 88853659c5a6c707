"""Sets the machine's name, to what it is."""

import socket

try:
    socket.sethostname(socket.gethostname())
    print("done")
except OSError:
    print("refused")
