"""Opens a socket of any family and type that the kernel has."""

import itertools
import socket

opened = 0
for family, kind in itertools.product(range(46), (1, 2, 3, 5)):
    try:
        socket.socket(family, kind).close()
        opened += 1
    except OSError:
        continue
print("done" if opened else "refused")
