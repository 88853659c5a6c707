"""Opens its parent's memory by the way of its threads."""

import glob
import os

opened = 0
for path in glob.glob(f"/proc/{os.getppid()}/task/*/mem"):
    try:
        open(path, "r+b").close()
        opened += 1
    except OSError:
        continue
print("done" if opened else "refused")
