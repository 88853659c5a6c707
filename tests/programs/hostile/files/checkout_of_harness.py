"""Reads the history of the checkout that its parent's command line names."""

import os

words = open(f"/proc/{os.getppid()}/cmdline", "rb").read().decode().split("\0")
folders = [word for word in words if word.startswith("/")]
read = 0
for folder in folders:
    while folder != "/":
        folder = os.path.dirname(folder)
        try:
            open(f"{folder}/.git/HEAD", "rb").close()
            read += 1
        except OSError:
            continue
print("done" if read else "refused")
