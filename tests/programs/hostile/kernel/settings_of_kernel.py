"""Opens settings of the kernel to change them, one of which names a program run as root."""

import os

opened = 0
for name in ("core_pattern", "modprobe", "randomize_va_space", "hostname", "dmesg_restrict"):
    try:
        os.close(os.open(f"/proc/sys/kernel/{name}", os.O_WRONLY))
        opened += 1
    except OSError:
        continue
print("done" if opened else "refused")
