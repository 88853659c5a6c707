"""Opens a file of the machine's logs."""

import os

opened = 0
for folder, _, names in os.walk("/var/log"):
    for name in names[:9]:
        try:
            open(f"{folder}/{name}", "rb").close()
            opened += 1
        except OSError:
            continue
print("done" if opened else "refused")
