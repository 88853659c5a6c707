"""Chooses that the kernel ends its parent first when memory is short."""

import os

try:
    with open(f"/proc/{os.getppid()}/oom_score_adj", "r+") as file:
        now = file.read()
        file.seek(0)
        file.write(now)
    print("done")
except OSError:
    print("refused")
