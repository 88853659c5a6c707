"""Opens the machine's disks past their file systems."""

import os

opened = 0
for line in open("/proc/partitions").read().splitlines()[2:]:
    try:
        os.close(os.open(f"/dev/{line.split()[3]}", os.O_RDONLY))
        opened += 1
    except OSError:
        continue
print("done" if opened else "refused")
