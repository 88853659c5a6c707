"""Asks how large files are that it must not read, and when they last changed."""

import os

asked = 0
for path in ("/etc/shadow", "/var/log", "/boot", "/sys"):
    try:
        asked += os.stat(path).st_mtime_ns > 0
    except OSError:
        continue
print("done" if asked else "refused")
