"""Types into the terminal of whoever started it, whose shell would run that later."""

import fcntl
import os

typed = 0
for descriptor in (0, 1, 2):
    try:
        # A space that is erased again at once.
        if os.isatty(descriptor):
            fcntl.ioctl(descriptor, 0x5412, b" ")
            fcntl.ioctl(descriptor, 0x5412, b"\x7f")
            typed += 1
    except OSError:
        continue
print("done" if typed else "refused")
