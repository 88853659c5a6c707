"""Opens a file to read it and to cut it at once; a device, which that does nothing to."""

import os

try:
    os.close(os.open("/dev/null", os.O_RDONLY | os.O_TRUNC))
    print("done")
except OSError:
    print("refused")
