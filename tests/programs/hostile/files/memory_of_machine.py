"""Opens the machine's memory and its kernel's as files."""

import os

opened = 0
for path in ("/dev/mem", "/dev/port", "/dev/kmem", "/proc/kcore"):
    try:
        os.close(os.open(path, os.O_RDONLY))
        opened += 1
    except OSError:
        continue
print("done" if opened else "refused")
