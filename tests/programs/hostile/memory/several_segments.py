"""Fills files in /dev/shm that are larger together than all files may be."""

import os

paths = [f"/dev/shm/hostile-{os.getpid()}-{number}" for number in range(2)]
try:
    for path in paths:
        with open(path, "xb") as file:
            os.posix_fallocate(file.fileno(), 0, 12 * 2**20)
    print("done")
except OSError:
    print("refused")
for path in filter(os.path.exists, paths):
    os.remove(path)
