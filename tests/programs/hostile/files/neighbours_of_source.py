"""Lists the folder of the program that contains it, which has the rest of the harness."""

import os

words = open(f"/proc/{os.getppid()}/cmdline", "rb").read().decode().split("\0")
listed = 0
for word in words:
    if word.startswith("/") and word.endswith(".py"):
        try:
            listed += len(os.listdir(os.path.dirname(word))) > 1
        except OSError:
            continue
print("done" if listed else "refused")
