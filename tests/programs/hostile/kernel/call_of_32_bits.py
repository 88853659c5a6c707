"""Opens a socket by the interface for programs of 32 bits, which numbers calls otherwise."""

import ctypes
import mmap
import os
import platform

# mov eax, 359; mov ebx, 1; mov ecx, 1; xor edx, edx; int 0x80, with rbx saved
code = "53 b867010000 bb01000000 b901000000 31d2 cd80 5b c3"
opened = False
if platform.machine() == "x86_64":
    child = os.fork()
    if child == 0:
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(bytes.fromhex(code))
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        os._exit(ctypes.CFUNCTYPE(ctypes.c_int)(address)() < 0)
    opened = os.waitpid(child, 0)[1] == 0
print("done" if opened else "refused")
