"""Opens what can be set of its parent by files, to change it."""

import glob
import os

names = ("clear_refs", "timerslack_ns", "coredump_filter", "uid_map", "setgroups", "sched")
opened = 0
for name in names:
    for path in glob.glob(f"/proc/{os.getppid()}/{name}"):
        try:
            os.close(os.open(path, os.O_WRONLY))
            opened += 1
        except OSError:
            continue
print("done" if opened else "refused")
