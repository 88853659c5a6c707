"""Sets the mode of a file outside its folder."""

import os

try:
    os.chmod(os.__file__, os.stat(os.__file__).st_mode & 0o7777)
    print("done")
except OSError:
    print("refused")
