"""Reads the environment of its parent's parent, and so on: one of them is the harness."""

import os
import re

read, process = 0, os.getppid()
while process > 0:
    try:
        read += len(open(f"/proc/{process}/environ", "rb").read()) > 0
    except OSError:
        read += 0
    status = open(f"/proc/{process}/status").read()
    process = int(re.search(r"PPid:\s*(\d+)", status)[1])
print("done" if read else "refused")
