"""Makes a file in every user's home."""

import glob
import os

made = 0
for home in ("/root", *glob.glob("/home/*")):
    try:
        open(f"{home}/.hostile-{os.getpid()}", "x").close()
        os.remove(f"{home}/.hostile-{os.getpid()}")
        made += 1
    except OSError:
        continue
print("done" if made else "refused")
