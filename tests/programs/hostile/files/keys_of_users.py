"""Lists the keys for SSH and GnuPG in every user's home."""

import glob
import os

listed = 0
for home in ("/root", *glob.glob("/home/*")):
    for folder in (".ssh", ".gnupg"):
        try:
            listed += len(os.listdir(f"{home}/{folder}")) >= 0
        except OSError:
            continue
print("done" if listed else "refused")
