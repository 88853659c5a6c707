"""Joins the namespaces of every process that it can name."""

import ctypes
import glob
import os

libc = ctypes.CDLL(None, use_errno=True)
child = os.fork()
if child == 0:
    joined = 0
    for path in glob.glob("/proc/[0-9]*/ns/[mnu][enst][trs]*"):
        try:
            joined += libc.setns(os.open(path, os.O_RDONLY), 0) == 0
        except OSError:
            continue
    os._exit(not joined)
print("refused" if os.waitpid(child, 0)[1] else "done")
