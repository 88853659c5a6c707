"""Looks for programs that give root's rights, and whether they would give them to it."""

import glob
import os

usable = 0
for path in glob.glob("/usr/bin/*"):
    if os.path.isfile(path) and os.stat(path).st_mode & 0o4000:
        usable += not os.statvfs(path).f_flag & os.ST_NOSUID
allowed = "NoNewPrivs:\t0" in open("/proc/self/status").read()
print("done" if usable and allowed else "refused")
