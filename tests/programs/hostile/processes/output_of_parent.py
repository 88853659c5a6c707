"""Opens its parent's descriptors by number, such as that of the harness."""

import os

opened = 0
for number in range(20):
    try:
        os.close(os.open(f"/proc/{os.getppid()}/fd/{number}", os.O_RDWR | os.O_NONBLOCK))
        opened += 1
    except OSError:
        continue
print("done" if opened else "refused")
