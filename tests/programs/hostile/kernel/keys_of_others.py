"""Lists the keys of other users, by the kernel's list of those that the program may see."""

import os

read = 0
try:
    owners = [line.split()[5] for line in open("/proc/keys").read().splitlines()]
    read += any(owner != str(os.getuid()) for owner in owners)
except OSError:
    read += 0
print("done" if read else "refused")
