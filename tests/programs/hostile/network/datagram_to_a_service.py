"""Connects one end of a pair of sockets to a service of the machine, such as its log."""

import contextlib
import socket

ours, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
names = ["/dev/log", "/run/systemd/journal/socket", "/run/systemd/journal/dev-log"]
with contextlib.suppress(OSError):
    for line in open("/proc/net/unix").read().splitlines()[1:]:
        words = line.split()
        names += [words[7].replace("@", "\0", 1)] if len(words) > 7 else []
reached = 0
for name in names:
    with contextlib.suppress(OSError):
        ours.connect(name)
        reached += 1
print("done" if reached else "refused")
