"""Opens the file by which the machine is told to forget all that it has cached."""

import os

try:
    os.close(os.open("/proc/sys/vm/drop_caches", os.O_WRONLY))
    print("done")
except OSError:
    print("refused")
