"""Opens the program that contains it, as its parent's command line names it, to change it."""

import os

words = open(f"/proc/{os.getppid()}/cmdline", "rb").read().decode().split("\0")
opened = 0
for word in words:
    if word.startswith("/") and word.endswith(".py"):
        try:
            open(word, "r+b").close()
            opened += 1
        except OSError:
            continue
print("done" if opened else "refused")
