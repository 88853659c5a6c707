"""Opens a module of the standard library to change it."""

import os

try:
    open(os.__file__, "r+b").close()
    print("done")
except OSError:
    print("refused")
