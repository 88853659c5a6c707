"""Lists folders that a machine has and no program needs."""

import os

listed = 0
for folder in ("/var", "/var/lib", "/boot", "/opt", "/srv", "/mnt", "/home", "/sys", "/run"):
    try:
        listed += len(os.listdir(folder)) > 0
    except OSError:
        continue
print("done" if listed else "refused")
