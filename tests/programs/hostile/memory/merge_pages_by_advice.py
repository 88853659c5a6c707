"""Has one page merged with equal pages of others, by advice on that page alone."""

import mmap

try:
    mmap.mmap(-1, mmap.PAGESIZE).madvise(12)
    print("done")
except OSError:
    print("refused")
