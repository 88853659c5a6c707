"""Gets a descriptor that stands for a folder only, and opens what is in it by that."""

import os

try:
    folder = os.open("/var", os.O_PATH | os.O_DIRECTORY)
    below = os.open("log", os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
    os.listdir(below)
    print("done")
except OSError:
    print("refused")
