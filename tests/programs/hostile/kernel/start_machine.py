"""Opens the devices by which whole machines and file systems are made."""

import os

opened = 0
for path in (
    "/dev/kvm",
    "/dev/fuse",
    "/dev/loop-control",
    "/dev/mapper/control",
    "/dev/userfaultfd",
):
    try:
        os.close(os.open(path, os.O_RDWR))
        opened += 1
    except OSError:
        continue
print("done" if opened else "refused")
