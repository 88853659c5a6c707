"""Has the kernel signal a process group when a pipe can be read, by the call's newer form."""

import fcntl
import os
import struct

try:
    fcntl.fcntl(os.pipe()[0], 15, struct.pack("ii", 2, os.getppid()))
    print("done")
except OSError:
    print("refused")
