"""Makes files writable again that are mounted to be read, in a user namespace of its own."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
child = os.fork()
if child == 0:
    failed = libc.unshare(0x10000000 | 0x20000) < 0
    failed = failed or libc.mount(None, b"/usr", None, 4096 | 32, None) < 0
    os._exit(failed or not os.access("/usr", os.W_OK))
print("refused" if os.waitpid(child, 0)[1] else "done")
