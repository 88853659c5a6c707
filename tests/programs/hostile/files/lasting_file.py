"""Leaves a file in a folder that even a restart does not empty."""

import os

made = 0
for folder in ("/var/tmp", "/var/lib", "/opt", "/srv", "/"):
    path = f"{folder}/hostile-{os.getpid()}"
    try:
        open(path, "x").close()
        os.remove(path)
        made += 1
    except OSError:
        continue
print("done" if made else "refused")
