"""Writes outside its folder by way of a symbolic link in it."""

import os

os.symlink("/var", "out")
try:
    open(f"out/tmp/hostile-{os.getpid()}", "x").close()
    os.remove(f"out/tmp/hostile-{os.getpid()}")
    print("done")
except OSError:
    print("refused")
os.remove("out")
