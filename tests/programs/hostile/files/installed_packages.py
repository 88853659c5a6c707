"""Adds a module to Python's installation, which every later run would import."""

import os
import sysconfig

made = 0
for kind in ("stdlib", "platstdlib", "purelib", "platlib", "scripts"):
    path = f"{sysconfig.get_path(kind)}/hostile_{os.getpid()}.pth-not"
    try:
        open(path, "x").close()
        os.remove(path)
        made += 1
    except OSError:
        continue
print("done" if made else "refused")
