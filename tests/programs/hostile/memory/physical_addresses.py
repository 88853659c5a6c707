"""Asks where in the machine's memory its own is, which attacks on its chips need."""

import ctypes
import mmap

page = ctypes.create_string_buffer(b"here", 2 * mmap.PAGESIZE)
try:
    with open("/proc/self/pagemap", "rb", buffering=0) as file:
        file.seek(ctypes.addressof(page) // mmap.PAGESIZE * 8)
        entry = int.from_bytes(file.read(8), "little")
    print("done" if entry & (2**55 - 1) else "refused")
except OSError:
    print("refused")
