"""Watches which programs and modules the rest of the machine opens."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
watches = libc.inotify_init1(0)
folders = ("/usr/bin", os.path.dirname(os.__file__))
watching = [libc.inotify_add_watch(watches, os.fsencode(folder), 0x20) for folder in folders]
print("refused" if max(watching) < 0 else "done")
