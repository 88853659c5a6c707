"""Hostile programs: each function is run alone, and returns whether what it tries was refused."""

import itertools
import os
import socket
import subprocess

from _shared import _lines, _no_call, _none, libc


def connections_of_machine():
    """Lists the machine's open connections, and with whom."""
    names = ("tcp", "tcp6", "udp", "udp6", "unix", "arp", "route")
    return _none(lambda name: len(open(f"/proc/net/{name}").readlines()) > 1, names)


def datagram_to_a_service():
    """Connects one end of a pair of sockets to a service of the machine, such as its log."""
    ours, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    names = ["/dev/log", "/run/systemd/journal/socket", "/run/systemd/journal/dev-log"]
    rows = [line.split() for line in _lines("/proc/net/unix")[1:]]
    names += [row[7].replace("@", "\0", 1) for row in rows if len(row) > 7]
    return _none(ours.connect, names)


def network_by_another_program():
    """Has the shell connect to the machine, whose answer tells a refusal from a closed port."""
    script = "exec 3<>/dev/tcp/127.0.0.1/1"
    ran = subprocess.run(["/bin/bash", "-c", script], capture_output=True, text=True, timeout=5)
    return "Connection refused" not in ran.stderr


def socket_of_another_name():
    """Gives one end of a pair of sockets a name under which all of the machine reaches it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    theirs.close()
    ours.bind(f"\0hostile-{os.getpid()}")
    # In a network of its own only its own socket has a name.
    return len([line for line in open("/proc/net/unix") if "hostile-" not in line]) <= 1


def sockets():
    """Opens a socket of any family and type that the kernel has, among them unix, internet,
    netlink, packets, virtual machine and Bluetooth, and some that are less common."""
    kinds = itertools.product(range(46), (1, 2, 3, 5), (0, 1))
    others = ((2, 3, 255), (2, 1 | socket.SOCK_NONBLOCK, 262))  # raw packets, many paths
    return _none(lambda kind: socket.socket(*kind).close(), (*kinds, *others))


def switch_of_network():
    """Sets whether a network device is up and asks for the machine's hardware addresses, by a pair
    of sockets; again in a network and a user namespace of its own."""
    number = socket.socketpair()[0].detach()
    devices = {line.split(":")[0].strip() for line in _lines("/proc/net/dev") if ":" in line}
    names = [name.encode().ljust(40, b"\0") for name in ({"eth0"} | devices) - {"lo"}]
    lines = [(16, 29, number, 0x8927, name) for name in names]
    lines += [(16, 29, number, request, b"lo".ljust(40, b"\0")) for request in (0x8913, 0x8914)]
    refused = _no_call(*lines)
    libc.unshare(0x10000000 | 0x40000000)
    return refused and _no_call(*lines)
