"""Opens the terminals of other programs, to read what is typed and to type into them."""

import glob
import os

opened = 0
for path in ("/dev/tty", "/dev/console", "/dev/tty1", *glob.glob("/dev/pts/[0-9]*")):
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK))
        opened += 1
    except OSError:
        continue
print("done" if opened else "refused")
