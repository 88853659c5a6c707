"""Asks for the hardware addresses of the machine's network, by a pair of sockets."""

import contextlib
import fcntl
import socket

ours, _ = socket.socketpair()
names = []
with contextlib.suppress(OSError):
    names = [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
asked = 0
for name in {*names, "eth0"} - {"lo"}:
    with contextlib.suppress(OSError):
        fcntl.ioctl(ours, 0x8927, name.encode().ljust(40, b"\0"))
        asked += 1
print("done" if asked else "refused")
