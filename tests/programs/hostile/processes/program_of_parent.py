"""Opens the file that its parent runs, and finds where it is."""

import os

try:
    os.readlink(f"/proc/{os.getppid()}/exe")
    open(f"/proc/{os.getppid()}/exe", "rb").close()
    print("done")
except OSError:
    print("refused")
