"""Cuts a file outside its folder, to the size that it has."""

import os

try:
    os.truncate(os.__file__, os.path.getsize(os.__file__))
    print("done")
except OSError:
    print("refused")
