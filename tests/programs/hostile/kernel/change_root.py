"""Makes its folder the root, from where a well-known way leads out of any root."""

import os

try:
    os.chroot(".")
    print("done")
except OSError:
    print("refused")
