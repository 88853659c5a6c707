"""Hostile programs: each function is run alone, and returns whether what it tries was refused."""

import contextlib
import fcntl
import itertools
import os
import socket
import subprocess

from _shared import _none


def addresses_of_machine():
    """Asks for the hardware addresses of the machine's network, by a pair of sockets."""
    ours, _ = socket.socketpair()
    names = {"eth0"}
    with contextlib.suppress(OSError):
        names |= {line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line}
    names.discard("lo")
    return _none(lambda name: fcntl.ioctl(ours, 0x8927, name.encode().ljust(40, b"\0")), names)


def connections_of_machine():
    """Lists the machine's open connections, and with whom."""
    names = ("tcp", "tcp6", "udp", "udp6", "unix", "arp", "route")
    return _none(lambda name: len(open(f"/proc/net/{name}").readlines()) > 1, names)


def datagram_to_a_service():
    """Connects one end of a pair of sockets to a service of the machine, such as its log."""
    ours, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    names = ["/dev/log", "/run/systemd/journal/socket", "/run/systemd/journal/dev-log"]
    with contextlib.suppress(OSError):
        rows = [line.split() for line in open("/proc/net/unix").readlines()[1:]]
        names += [row[7].replace("@", "\0", 1) for row in rows if len(row) > 7]
    return _none(ours.connect, names)


def network_by_another_program():
    """Has the shell connect to the machine, whose answer tells a refusal from a closed port."""
    script = "exec 3<>/dev/tcp/127.0.0.1/1"
    ran = subprocess.run(["/bin/bash", "-c", script], capture_output=True, text=True, timeout=5)
    return "Connection refused" not in ran.stderr


def socket_algorithms():
    """Opens a socket to the kernel's cryptography."""
    socket.socket(38, socket.SOCK_SEQPACKET)


def socket_bluetooth():
    """Opens a socket of the family Bluetooth."""
    socket.socket(31, socket.SOCK_RAW, 1)


def socket_internet():
    """Opens a socket of the family 2, internet."""
    socket.socket(2, socket.SOCK_STREAM)


def socket_internet_6():
    """Opens a socket of the internet protocol's version 6."""
    socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)


def socket_netlink():
    """Opens a socket of the family 16, netlink."""
    socket.socket(16, socket.SOCK_RAW)


def socket_of_another_name():
    """Gives one end of a pair of sockets a name under which all of the machine reaches it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    theirs.close()
    ours.bind(f"\0hostile-{os.getpid()}")
    # In a network of its own only its own socket has a name.
    return len([line for line in open("/proc/net/unix") if "hostile-" not in line]) <= 1


def socket_of_any_family():
    """Opens a socket of any family and type that the kernel has."""
    kinds = itertools.product(range(46), (1, 2, 3, 5))
    return _none(lambda kind: socket.socket(*kind).close(), kinds)


def socket_of_many_paths():
    """Opens a socket of the protocol MPTCP, in case only the common ones are refused."""
    socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, 262)


def socket_packets():
    """Opens a socket of the family 17, packets."""
    socket.socket(17, socket.SOCK_RAW)


def socket_ping():
    """Opens a socket that may ping other machines, which needs no privileges."""
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)


def socket_raw():
    """Opens a socket for internet packets of its own making."""
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)


def socket_shared_memory():
    """Opens a socket of the family SMC, which reaches the internet under another number."""
    socket.socket(43, socket.SOCK_STREAM)


def socket_unix():
    """Opens a socket of the family 1, unix."""
    socket.socket(1, socket.SOCK_STREAM)


def socket_virtual_machine():
    """Opens a socket of the family 40, virtual machine."""
    socket.socket(40, socket.SOCK_STREAM)


def switch_of_network():
    """Sets whether a network device is up, by a pair of sockets."""
    ours, _ = socket.socketpair()
    fcntl.ioctl(ours, 0x8914, fcntl.ioctl(ours, 0x8913, b"lo".ljust(40, b"\0")))


def tunnel():
    """Opens the devices that make networks, to tunnel out by one."""
    paths = ("/dev/net/tun", "/dev/ppp", "/dev/vsock", "/dev/vhost-vsock", "/dev/vhost-net")
    return _none(lambda path: os.close(os.open(path, os.O_RDWR)), paths)
