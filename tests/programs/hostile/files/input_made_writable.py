"""Makes its standard input, a file of the machine, writable, and opens it again to write."""

import os
import stat

mode = os.fstat(0).st_mode
try:
    if not stat.S_ISREG(mode):
        raise OSError("it is no file")
    os.fchmod(0, stat.S_IMODE(mode) | 0o200)
    open("/proc/self/fd/0", "r+b")
    print("done")
except OSError:
    print("refused")
