"""Looks for descriptors that its parent left open, to reach files and sockets by them."""

import os
import sys

named = {}
for number in range(3, 128):
    try:
        named[number] = os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        continue
own = [number for number, name in named.items() if name == os.path.abspath(sys.argv[0])]
print("done" if named.keys() - set(own) else "refused")
