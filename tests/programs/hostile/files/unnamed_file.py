"""Makes files without a name outside its folder, which no list shows."""

import os

made = 0
for folder in ("/", "/var/tmp", "/root", "/home", "/usr", os.path.dirname(os.__file__)):
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR))
        made += 1
    except OSError:
        continue
print("done" if made else "refused")
