"""Makes a device of its own that is the machine's memory, and opens it."""

import os
import stat

try:
    os.mknod("device", stat.S_IFCHR | 0o600, os.makedev(1, 1))
except OSError:
    print("refused")
else:
    try:
        os.close(os.open("device", os.O_RDONLY))
        print("done")
    except OSError:
        print("refused")
    os.remove("device")
