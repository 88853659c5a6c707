"""Has the kernel wait for it at an address of its choice, by a device that makes it possible."""

import fcntl
import os

try:
    fcntl.ioctl(os.open("/dev/userfaultfd", os.O_RDWR), 0xAA00, 0)
    print("done")
except OSError:
    print("refused")
