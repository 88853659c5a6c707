"""Opens the kernel's log as a file, to read it and to add lines that look like the kernel's."""

import os

opened = 0
for path, mode in (("/dev/kmsg", os.O_RDONLY), ("/dev/kmsg", os.O_WRONLY), ("/proc/kmsg", 0)):
    try:
        os.close(os.open(path, mode | os.O_NONBLOCK))
        opened += 1
    except OSError:
        continue
print("done" if opened else "refused")
