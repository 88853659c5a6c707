"""Opens the machine's keyboards, to read what is typed, and the device that makes new ones."""

import glob
import os

opened = 0
for path in ("/dev/uinput", *glob.glob("/dev/input/event*"), *glob.glob("/dev/hidraw*")):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        opened += 1
    except OSError:
        continue
print("done" if opened else "refused")
