"""Makes a program that gives its owner's rights to whoever runs it, where that counts."""

import os

with open("program", "wb") as file:
    os.fchmod(file.fileno(), 0o4755)
kept = os.stat("program").st_mode & 0o4000
ignored = os.statvfs("program").f_flag & os.ST_NOSUID
os.remove("program")
print("done" if kept and not ignored else "refused")
