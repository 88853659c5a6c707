"""Makes namespaces other than a user's: of mounts, names, network, processes, and so on."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
made = 0
for kind in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x20000000, 0x40000000, 0x80):
    child = os.fork()
    if child == 0:
        os._exit(libc.unshare(kind) < 0)
    made += os.waitpid(child, 0)[1] == 0
print("done" if made else "refused")
