"""Sets the mode of a device that all programs of the machine write to."""

import os

changed = 0
for device in ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"):
    try:
        os.chmod(device, os.stat(device).st_mode & 0o7777)
        changed += 1
    except OSError:
        continue
print("done" if changed else "refused")
