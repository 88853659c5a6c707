"""Sets the times of a file outside its folder, by which Python trusts compiled modules."""

import os

before = os.stat(os.__file__)
try:
    os.utime(os.__file__, ns=(before.st_atime_ns, before.st_mtime_ns))
    print("done")
except OSError:
    print("refused")
