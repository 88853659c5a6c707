"""Opens the file by which the machine is put to sleep, and that for emergencies."""

import os

opened = 0
for path in ("/sys/power/state", "/proc/sysrq-trigger", "/sys/power/mem_sleep"):
    try:
        os.close(os.open(path, os.O_WRONLY))
        opened += 1
    except OSError:
        continue
print("done" if opened else "refused")
