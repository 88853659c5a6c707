"""Sets the owner of a file outside its folder."""

import os

try:
    os.chown(os.__file__, os.stat(os.__file__).st_uid, os.stat(os.__file__).st_gid)
    print("done")
except OSError:
    print("refused")
