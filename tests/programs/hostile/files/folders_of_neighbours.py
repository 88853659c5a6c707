"""Looks into the other folders in /tmp, such as those of programs that run beside it."""

import glob
import os

space = os.statvfs("/tmp")
private = space.f_blocks * space.f_frsize <= 2**26  # a /tmp of its own, as large as it may fill
opened = 0
for path in [] if private else glob.glob("/tmp/*"):
    if path == os.getcwd():
        continue
    try:
        os.listdir(path) if os.path.isdir(path) else open(path, "rb").close()
        opened += 1
    except OSError:
        continue
print("done" if opened else "refused")
