"""Takes from the machine's store of huge pages, which is for others."""

import mmap

try:
    mmap.mmap(-1, 2**21, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000).close()
    print("done")
except OSError:
    print("refused")
