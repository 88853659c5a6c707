"""Takes its parent's root and folder as a way out of its own."""

import os

listed = 0
for name in ("root", "cwd"):
    try:
        listed += len(os.listdir(f"/proc/{os.getppid()}/{name}/")) > 0
    except OSError:
        continue
print("done" if listed else "refused")
