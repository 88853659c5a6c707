"""Writes more in several files than the limit allows for all of them together."""

import os

names = ["first", "second"]
try:
    for name in names:
        with open(name, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 12 * 2**20)
    print("done")
except OSError:
    print("refused")
for name in names:
    if os.path.exists(name):
        os.remove(name)
